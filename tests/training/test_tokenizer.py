"""The pair's tokenizer: lossless, digits apart, and a template that writes what the models were trained on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from adaptspec.training.corpus import SPECIAL_TOKENS, Record
from adaptspec.training.tokenizer import encode, train_tokenizer

TOKENIZER = train_tokenizer(["the cat sat on the mat, 1999 times"] * 20, 300, 128)


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    return TOKENIZER


@given(st.text(st.characters(exclude_categories=("Cs",)), max_size=40))
def test_every_text_survives_encoding(text: str) -> None:
    """Byte-level: nothing is unknown, nothing is lost."""
    ids = TOKENIZER(text, add_special_tokens=False).input_ids
    if not any(special in text for special in SPECIAL_TOKENS):
        assert TOKENIZER.decode(ids) == text


def test_digits_never_merge(tokenizer: PreTrainedTokenizerFast) -> None:
    """Numbers are spelled digit by digit, which small models need."""
    assert len(tokenizer("1999", add_special_tokens=False).input_ids) == 4


def test_the_chat_template_writes_the_training_layout(tokenizer: PreTrainedTokenizerFast) -> None:
    """A served prompt must look exactly like a training record up to the answer."""
    messages = [{"role": "user", "content": "Hi"}]
    prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert Record("chat", "x", "Hi", "Hello").text == f"{prompt}Hello<|end|>\n"


def test_the_chat_template_folds_system_into_user(tokenizer: PreTrainedTokenizerFast) -> None:
    """The models never saw a system turn."""
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    assert text == "<|user|>\nBe brief.\n\nHi<|end|>\n"


def test_encode_is_the_concatenation_of_the_texts(tokenizer: PreTrainedTokenizerFast) -> None:
    """Chunking must not change the tokens."""
    texts = ["the cat", "sat on", "the mat"]
    whole = [i for text in texts for i in tokenizer(text, add_special_tokens=False).input_ids]
    assert encode(tokenizer, texts, chunk=2).tolist() == whole

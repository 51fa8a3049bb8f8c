"""The pair's tokenizer: lossless, digits apart, and a template that writes what the models were trained on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from adaptspec.errors import CorpusError
from adaptspec.training.corpus import SPECIAL_TOKENS, Record
from adaptspec.training.tokenizer_training import Windows, train_tokenizer

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


@given(st.integers(1, 5), st.integers(2, 9), st.integers(0, 200), st.integers(0, 3))
def test_an_epoch_visits_every_window_once(batch: int, window: int, extra: int, seed: int) -> None:
    """No text is dropped or doubled by the shuffling."""
    tokens = np.arange(window * (batch + 2) + 1 + extra, dtype=np.uint16)
    windows = Windows(tokens, 1, window, seed)
    count = (len(tokens) - 1) // window - 1
    starts = sorted(int(windows.at(step)[0, 0]) for step in range(count))
    assert starts == list(range(starts[0], starts[0] + count * window, window))


def test_too_little_text_is_a_corpus_error() -> None:
    """A tiny corpus must not end in an index error."""
    with pytest.raises(CorpusError, match="one batch needs"):
        Windows(np.arange(30, dtype=np.uint16), 4, 8)

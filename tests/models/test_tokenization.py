"""Tokenizers: what is refused, the bytes of tokens, and the tokens of a text that follows on another one."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from adaptspec.errors import ModelError, PairError, RequestError
from adaptspec.models.chat.chat_template import ChatTemplate
from adaptspec.models.runner import ModelInfo
from adaptspec.models.tokenization import Spelling, TokenBytes, check_tokenizer, load_tokenizer
from tests.conftest import TINY_VOCAB, MakeModel, tiny_tokenizer
from tests.drafting.spellings import gpt2_like, metaspace, word_piece

INFO = ModelInfo("big", "llama", 1, TINY_VOCAB, 64, "x", (1,), "float32")


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_token_ids_are_those_of_the_directory(
    make_model: MakeModel, family: str, tokenizer: PreTrainedTokenizerBase
) -> None:
    """No family's usual special tokens are added to a tokenizer that does not have them."""
    loaded = load_tokenizer(str(make_model(family)))
    assert loaded.get_vocab() == tokenizer.get_vocab()
    assert loaded.decode(loaded.encode("héllo\n")) == "héllo\n"
    assert loaded.chat_template == tokenizer.chat_template


@pytest.mark.parametrize("described", [True, False])
def test_a_tokenizer_that_names_no_class_is_what_its_file_says(
    make_model: MakeModel, tmp_path: Path, tokenizer: PreTrainedTokenizerBase, described: bool
) -> None:
    """Asked by the type of the model, its family's class would read the text in its own way and add its own tokens."""
    folder = tmp_path / "model"
    shutil.copytree(make_model("qwen2"), folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").unlink()
    if described:
        del settings["tokenizer_class"]
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    assert load_tokenizer(str(folder)).get_vocab() == tokenizer.get_vocab()


def test_a_loaded_tokenizer_neither_cuts_nor_fills_up(
    make_model: MakeModel, tmp_path: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    """Counts of a corpus are made of whole texts, whatever the file says of those that the model was trained on."""
    folder = tmp_path / "model"
    shutil.copytree(make_model("llama"), folder)
    expected = tokenizer.encode("hello", add_special_tokens=False)
    for setting in ("truncation", "padding"):
        backend = Tokenizer.from_file(str(make_model("llama") / "tokenizer.json"))
        backend.enable_truncation(2) if setting == "truncation" else backend.enable_padding(length=9)
        backend.save(str(folder / "tokenizer.json"))
        loaded = load_tokenizer(str(folder)).backend_tokenizer
        assert loaded.encode("hello", add_special_tokens=False).ids == expected, setting


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda folder: (folder / "tokenizer.json").unlink(), "no tokenizer.json"),
        (lambda folder: (folder / "tokenizer.json").write_text("{"), "cannot load the tokenizer"),
        (lambda folder: (folder / "tokenizer_config.json").write_text("{"), "not valid JSON"),
        (lambda folder: (folder / "tokenizer_config.json").write_text(json.dumps({"auto_map": {}})), "run code"),
    ],
)
def test_broken_tokenizers_are_explained(make_model: MakeModel, tmp_path: Path, break_it: object, message: str) -> None:
    folder = tmp_path / "model"
    shutil.copytree(make_model("llama"), folder)
    break_it(folder)  # type: ignore[operator]
    with pytest.raises(ModelError, match=message):
        load_tokenizer(str(folder))


def test_a_tokenizer_larger_than_the_model_is_refused() -> None:
    check_tokenizer(tiny_tokenizer(), INFO)
    with pytest.raises(ModelError, match="token id 259, the model only 200"):
        check_tokenizer(tiny_tokenizer(), dataclasses.replace(INFO, vocab_size=200))
    with pytest.raises(ModelError, match="token id 259, the model only 259"):
        check_tokenizer(tiny_tokenizer(), dataclasses.replace(INFO, vocab_size=259))


FAULTS = ("{{ 'x' + 1 }}", "{{ 1 / 0 }}", "{{ {}['x']['y'] }}", "{{ raise_exception('no') }}", "{% if")


@pytest.mark.parametrize("template", FAULTS)
def test_a_template_that_fails_is_a_refusal_that_says_what_to_do(template: str) -> None:
    """A benchmark or a training run ended with the template's own error, which may be of any kind."""
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    with pytest.raises(RequestError, match=r"does not take these messages .*; change their roles or order") as refused:
        ChatTemplate(tokenizer).encode_turn("x")
    assert refused.value.param == "messages"
    assert str(refused.value.__cause__) in str(refused.value)


@given(text=st.text(max_size=30))
def test_a_byte_level_text_is_the_bytes_of_its_tokens(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    """Every byte, half a character included."""
    bytes_of = TokenBytes(tokenizer)
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert b"".join(bytes_of(token) for token in ids) == text.encode()


def test_special_tokens_are_written_out_and_padding_is_nothing(tokenizer: PreTrainedTokenizerFast) -> None:
    """A padded head has ids that no token has."""
    assert TokenBytes(tokenizer)(1) == b"<|end|>"
    assert TokenBytes(tokenizer)(100_000) == b""


def test_sentencepiece_marks_spaces_and_bytes() -> None:
    """A leading space stays, unlike in decoding a token alone."""
    vocabulary = [("<unk>", 0.0), ("\u2581the", -1.0), ("<0xE2>", -2.0), ("caf\u00e9", -3.0)]
    backend = Tokenizer(models.Unigram(vocabulary, unk_id=0, byte_fallback=True))
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    bytes_of = TokenBytes(PreTrainedTokenizerFast(tokenizer_object=backend))
    assert [bytes_of(i) for i in (1, 2, 3)] == [b" the", b"\xe2", "caf\u00e9".encode()]


def spelling(tokenizer: PreTrainedTokenizerFast) -> Spelling:
    return Spelling(tokenizer, dataclasses.replace(INFO, vocab_size=len(tokenizer)))


@given(before=st.text(max_size=12), text=st.text(max_size=12))
@example(before="", text="t")  # one of the vocabularies has a token of a line break and this letter
def test_what_follows_is_written_whatever_comes_before(before: str, text: str) -> None:
    """All of it and nothing else, also where the tokenizer would put a space before a text."""
    for tokenizer in (GPT2, METASPACE):
        assert tokenizer.text(tokenizer.after(before, text)) == text


GPT2, METASPACE = spelling(gpt2_like()), spelling(metaspace())


def test_a_tokenizer_is_judged_by_a_text_that_is_neither_cut_nor_filled_up() -> None:
    """Its file may say that texts are. One word would hide that tokens are not what their text is made of, and the
    model may lack the token that is filled up with.
    """
    cut, filled = word_piece(), gpt2_like()
    cut.backend_tokenizer.enable_truncation(1)
    with pytest.raises(PairError, match="cannot be told apart"):
        spelling(cut)
    filled.backend_tokenizer.enable_padding(length=4096, pad_id=len(filled), pad_token="<pad>")
    assert spelling(filled).encode("The engine") == GPT2.encode("The engine")


def test_what_follows_is_written_as_in_the_whole_text() -> None:
    """Words that go on, and such as begin."""
    for tokenizer in (GPT2, METASPACE):
        whole = tokenizer.encode("The engine drafts tokens. The policies are tested.")
        for at in range(1, len(whole)):
            before, text = tokenizer.text(whole[:at]).removeprefix(tokenizer.space), tokenizer.text(whole[at:])
            assert tokenizer.after(before, text) == whole[at:]

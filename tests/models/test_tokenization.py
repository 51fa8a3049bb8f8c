"""Tokenizers: what is refused, what a pair must share, and the bytes of tokens."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from adaptspec.errors import ModelError, PairError
from adaptspec.models.runner import ModelInfo
from adaptspec.models.tokenization import TokenBytes, check_pair, check_tokenizer, load_tokenizer
from tests.conftest import TINY_VOCAB, MakeModel, tiny_tokenizer

INFO = ModelInfo("big", "llama", 1, TINY_VOCAB, 64, "x", (1,), "float32")
DRAFT = dataclasses.replace(INFO, name="small")


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_token_ids_are_those_of_the_directory(
    make_model: MakeModel, family: str, tokenizer: PreTrainedTokenizerBase
) -> None:
    """No family's usual special tokens are added to a tokenizer that does not have them."""
    loaded = load_tokenizer(str(make_model(family)))
    assert loaded.get_vocab() == tokenizer.get_vocab()
    assert loaded.decode(loaded.encode("héllo\n")) == "héllo\n"
    assert loaded.chat_template == tokenizer.chat_template


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


def test_equal_tokenizers_pair_even_if_embeddings_are_padded() -> None:
    check_pair(tiny_tokenizer(), tiny_tokenizer(), INFO, dataclasses.replace(DRAFT, vocab_size=512))


def test_different_vocabularies_do_not_pair() -> None:
    other = tiny_tokenizer()
    other.add_tokens(["hello"])
    with pytest.raises(PairError, match=r"small cannot draft for big.*'hello' is None in the target and 260"):
        check_pair(tiny_tokenizer(), other, INFO, DRAFT)


def test_different_special_tokens_do_not_pair() -> None:
    other = tiny_tokenizer()
    other.eos_token = "<|pad|>"
    with pytest.raises(PairError, match="eos_token_id is 1 in the target and 0 in the draft"):
        check_pair(tiny_tokenizer(), other, INFO, DRAFT)


def test_a_tokenizer_larger_than_the_model_is_refused() -> None:
    check_tokenizer(tiny_tokenizer(), INFO)
    with pytest.raises(ModelError, match="token id 259, the model only 200"):
        check_tokenizer(tiny_tokenizer(), dataclasses.replace(INFO, vocab_size=200))


def test_a_long_text_is_no_cause_for_a_warning(
    make_model: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers would print one of its own beside the log; how much fits is the server's affair."""
    folder = tmp_path / "model"
    shutil.copytree(make_model("llama"), folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"model_max_length": 4}))
    tokenizer, said = load_tokenizer(str(folder)), []
    monkeypatch.setattr("transformers.tokenization_utils_base.logger.warning", lambda text, *_: said.append(text))
    assert len(tokenizer.encode("a text that is longer than that")) > 4
    assert not said


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

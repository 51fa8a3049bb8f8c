"""Bytes of single tokens: put together they are the text, in either way of writing a vocabulary down."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from adaptspec.models.token_bytes import TokenBytes


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

"""Text while it streams: it equals the text decoded at once, characters stay whole, stop strings never leak."""

from __future__ import annotations

import codecs

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from adaptspec.engine.detokenizer import Detokenizer
from tests.engine.conftest import byte_level


def _stream(tokenizer: PreTrainedTokenizerFast, tokens: list[int], stop: tuple[str, ...] = ()) -> tuple[str, list[str]]:
    detokenizer = Detokenizer(tokenizer, stop)
    pieces = []
    for token in tokens:
        stopped = detokenizer.push(token)
        pieces.append(detokenizer.take())
        if stopped:
            break
    pieces.append(detokenizer.take(final=True))
    assert "".join(pieces) == detokenizer.text
    return detokenizer.text, pieces


@pytest.fixture(scope="module")
def shared(tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    return tokenizer


WORDS = ["▁", "▁a", "▁the", "b", "é", "你", "▁▁", "x y", "\ufffd"]
FIRST_BYTE = 2 + len(WORDS)  # after <unk> and </s>


@pytest.fixture(scope="module")
def byte_fallback() -> PreTrainedTokenizerFast:
    """As Llama 2's: words with their space before them, single bytes for all else; the first space is dropped."""
    tokens = ["<unk>", "</s>", *WORDS, *(f"<0x{byte:02X}>" for byte in range(256))]
    backend = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, [], unk_token="<unk>"))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", unk_token="<unk>")


# Mostly bytes, and mostly such as begin or go on with a character: whole characters and broken ones both turn up.
BYTES = st.sampled_from([0x20, 0x41, 0x0A, 0xC3, 0xA9, 0xE4, 0xBD, 0xA0, 0xF0, 0x9F, 0x98, 0x80, 0xFF])
FALLBACK_TOKENS = st.lists(
    st.one_of(st.integers(0, FIRST_BYTE - 1), BYTES.map(lambda byte: FIRST_BYTE + byte), st.integers(0, 266)),
    max_size=24,
)


@settings(max_examples=200, deadline=None)
@given(tokens=st.lists(st.integers(0, 259), max_size=30))
def test_any_tokens_stream_as_they_decode(shared: PreTrainedTokenizerFast, tokens: list[int]) -> None:
    """Bytes that are no UTF-8 come out as U+FFFD, the same streamed as decoded at once."""
    whole, _ = _stream(shared, tokens)
    assert whole == shared.decode(tokens, skip_special_tokens=True)


def _whole_bytes(tokens: list[int]) -> bool:
    """Whether the bytes between words are whole characters."""
    runs = bytes(token - FIRST_BYTE if token >= FIRST_BYTE else 0x20 for token in tokens if token > 1)
    try:
        runs.decode()
    except UnicodeDecodeError:
        return False
    return True


@settings(max_examples=400, deadline=None)
@given(tokens=FALLBACK_TOKENS)
def test_byte_fallback_survives_any_bytes(byte_fallback: PreTrainedTokenizerFast, tokens: list[int]) -> None:
    """Whole characters stream as they decode at once; broken ones raise nothing, and no word near them is lost.

    Decoded at once, one broken byte spoils its whole run of bytes, text that is already out included: a stream keeps
    that text instead.
    """
    streamed, _ = _stream(byte_fallback, tokens)
    if _whole_bytes(tokens):
        assert streamed == byte_fallback.backend_tokenizer.decode(tokens)
    at = 0
    for token in tokens:
        if 2 < token < FIRST_BYTE:
            word = WORDS[token - 2].replace("▁", " ").strip(" ")
            at = streamed.index(word, at) + len(word)


@settings(max_examples=100, deadline=None)
@given(text=st.text("a你é😀 \n", max_size=12))
def test_byte_fallback_hands_out_each_character_when_it_is_whole(
    byte_fallback: PreTrainedTokenizerFast, text: str
) -> None:
    """A newline or an emoji made of bytes comes at once, not when the run of bytes ends: stop strings need it."""
    detokenizer = Detokenizer(byte_fallback)
    out = ""
    for character in text:
        for byte in character.encode():
            detokenizer.push(FIRST_BYTE + byte)
        out += detokenizer.take()
        assert out == detokenizer.text
    assert out == text.removeprefix(" ")


def test_returned_text_stays_when_an_invalid_byte_follows(byte_fallback: PreTrainedTokenizerFast) -> None:
    """`A` has been sent when the byte after it turns out to be none of UTF-8; the word behind follows all the same."""
    detokenizer = Detokenizer(byte_fallback)
    pieces = []
    for token in (FIRST_BYTE + 0x41, FIRST_BYTE + 0xFF, 3, 5):
        detokenizer.push(token)
        pieces.append(detokenizer.take())
    assert pieces == ["A", "", "\ufffd a", "b"]


@settings(max_examples=300, deadline=None)
@given(
    text=st.text("abxyé", max_size=24),
    stops=st.lists(st.text("abxyé", min_size=1, max_size=4), min_size=1, max_size=3),
    allowed_from=st.integers(0, 24),
)
def test_returned_text_never_changes(
    shared: PreTrainedTokenizerFast, text: str, stops: list[str], allowed_from: int
) -> None:
    """Wherever min_tokens ends: deltas joined are the text, cut at the first stop string that ends after that."""
    tokens = shared.encode(text)
    detokenizer = Detokenizer(shared, tuple(stops))
    out = ""
    for i, token in enumerate(tokens):
        stopped = detokenizer.push(token, may_stop=i >= allowed_from)
        out += detokenizer.take()
        assert detokenizer.text.startswith(out)
        if stopped:
            break
    out += detokenizer.take(final=True)
    assert out == detokenizer.text
    barred = len(shared.decode(tokens[:allowed_from]).replace("\ufffd", ""))
    ends = [end for end in range(barred + 1, len(text) + 1) if text[:end].endswith(tuple(stops))]
    if ends:
        longest = max(len(stop) for stop in stops if text[: ends[0]].endswith(stop))
        assert out == text[: ends[0] - longest]
    else:
        assert out == text


# Tokens of many bytes that begin or end in half a character, as large byte-level vocabularies have them.
FRAGMENTS = st.lists(
    st.one_of(
        st.text("ab é你😀", max_size=3).map(str.encode),
        st.tuples(st.text("ab", max_size=2), st.sampled_from("é你😀"), st.integers(1, 3)).map(
            lambda part: part[0].encode() + part[1].encode()[: part[2]]
        ),
        st.tuples(st.sampled_from("é你😀"), st.integers(1, 3), st.text("ab", max_size=2)).map(
            lambda part: part[0].encode()[part[1] :] + part[2].encode()
        ),
        st.binary(min_size=1, max_size=2),
    ).filter(bool),
    max_size=24,
)


def _characters(tokens: list[bytes]) -> str:
    """The whole characters these bytes begin with or hold; what may be the half of one at the end is left out."""
    return codecs.getincrementaldecoder("utf-8")("replace").decode(b"".join(tokens)).rstrip("\ufffd")


@settings(max_examples=400, deadline=None)
@given(
    tokens=FRAGMENTS,
    stops=st.lists(st.text("abé你😀", min_size=1, max_size=3), min_size=1, max_size=2),
    allowed_from=st.integers(0, 6),
)
def test_a_stop_string_is_noticed_at_the_very_token_that_completes_it(
    tokens: list[bytes], stops: list[str], allowed_from: int
) -> None:
    """Though the same token begins another character: a token later may be one too many."""
    vocabulary = sorted(set(tokens))
    detokenizer = Detokenizer(byte_level(vocabulary), tuple(stops))
    out, before = "", ""
    for i, token in enumerate(tokens):
        stopped = detokenizer.push(vocabulary.index(token), may_stop=i >= allowed_from)
        out += detokenizer.take()
        whole = _characters(tokens[: i + 1])
        starts = [whole.find(stop, max(0, len(before) - len(stop) + 1)) for stop in stops]
        found = [at for at in starts if at >= 0] if i >= allowed_from else []
        assert stopped == bool(found)
        if found:
            assert out == detokenizer.text == whole[: min(found)]
            return
        assert detokenizer.text == whole
        before = whole
    assert out + detokenizer.take(final=True) == b"".join(tokens).decode(errors="replace")


def test_half_a_character_at_the_end_may_complete_a_stop_string() -> None:
    """It comes out as U+FFFD once nothing follows, and whoever cuts the text there says so."""
    detokenizer = Detokenizer(byte_level([b"a\xe4"]), ("a\ufffd",))
    assert not detokenizer.push(0)
    assert detokenizer.close()
    assert detokenizer.take(final=True) == detokenizer.text == ""

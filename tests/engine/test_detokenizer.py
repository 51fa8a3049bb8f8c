"""Text while it streams: it equals the text decoded at once, characters stay whole, stop strings never leak."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from adaptspec.engine.detokenizer import Detokenizer


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


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=30))
def test_stream_equals_the_whole_text(shared: PreTrainedTokenizerFast, text: str) -> None:
    """Whatever the text, its pieces put together are the text, and no piece holds half a character."""
    whole, pieces = _stream(shared, shared.encode(text))
    assert whole == text
    assert all("\ufffd" not in piece for piece in pieces) or "\ufffd" in text


@settings(max_examples=200, deadline=None)
@given(tokens=st.lists(st.integers(0, 259), max_size=30))
def test_any_tokens_stream_as_they_decode(shared: PreTrainedTokenizerFast, tokens: list[int]) -> None:
    """Bytes that are no UTF-8 come out as U+FFFD, the same streamed as decoded at once."""
    whole, _ = _stream(shared, tokens)
    assert whole == shared.decode(tokens, skip_special_tokens=True)


@settings(max_examples=200, deadline=None)
@given(
    text=st.text("ab<é", max_size=30), stops=st.lists(st.text("ab<é", min_size=1, max_size=4), min_size=1, max_size=3)
)
def test_output_ends_before_the_earliest_stop_string(
    shared: PreTrainedTokenizerFast, text: str, stops: list[str]
) -> None:
    """The text is cut where the first-completed stop string begins; no part of it is ever handed out."""
    whole, pieces = _stream(shared, shared.encode(text), tuple(stops))
    assert text.startswith(whole)
    assert all(stop not in whole for stop in stops)
    ends = [at + len(stop) for stop in stops if (at := text.find(stop)) >= 0]
    if not ends:
        assert whole == text
        return
    completed = [text.find(s) for s in stops if s in text[: min(ends)]]
    assert whole == text[: min(completed)]
    handed_out = ""
    for piece in pieces:
        handed_out += piece
        assert whole.startswith(handed_out)


def test_stop_strings_wait_for_min_tokens(shared: PreTrainedTokenizerFast) -> None:
    """A stop string completed while stopping is not allowed is text like any other."""
    detokenizer = Detokenizer(shared, ("b",))
    assert not detokenizer.push(shared.encode("b")[0], may_stop=False)
    assert detokenizer.push(shared.encode("b")[0])
    assert detokenizer.text == "b"

"""Tool calls read back: however the answer is cut into pieces, the same text and the same calls."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from adaptspec.server.chat import gathered
from adaptspec.server.tool_text import Part, ToolText
from adaptspec.server.tools import HEAD, MIDDLE, TAIL

WORDS = st.text(alphabet="ab<tool_c>\n {\"'", max_size=12).filter(lambda text: HEAD not in text)
CALL = st.tuples(st.sampled_from(["f", "get-it"]), st.sampled_from(["{}", '{"a": "}"}', '{"a": {"b": []}}']))
ANSWER = st.lists(WORDS | CALL, max_size=5)


def _read(pieces: list[str]) -> list[Part]:
    reader = ToolText()
    return [part for piece in pieces for part in reader.feed(piece)] + list(reader.end())


def _plain(parts: list[Part]) -> tuple[str | None, list[tuple[str, str]]]:
    content, calls = gathered(parts)
    return content, [(call["function"]["name"], call["function"]["arguments"]) for call in calls]


@given(answer=ANSWER, cuts=st.lists(st.integers(0, 200), max_size=8), length=st.integers(0, 200))
def test_pieces_say_what_the_whole_says(answer: list[str | tuple[str, str]], cuts: list[int], length: int) -> None:
    """Also where the answer ends in the middle of a call."""
    text = "".join(part if isinstance(part, str) else HEAD + part[0] + MIDDLE + part[1] + TAIL for part in answer)
    text = text[: max(len(text) - length, 0)] if length < len(text) else text
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    pieces = [text[a:b] for a, b in pairwise(places)]
    assert _plain(_read(pieces)) == _plain(_read([text]))


@given(answer=ANSWER)
def test_calls_come_back_as_they_were_written(answer: list[str | tuple[str, str]]) -> None:
    """And nothing of them is left in the text."""
    text = "".join(part if isinstance(part, str) else HEAD + part[0] + MIDDLE + part[1] + TAIL for part in answer)
    content, calls = _plain(_read(list(text)))
    assert calls == [part for part in answer if not isinstance(part, str)]
    assert HEAD not in (content or "")


def test_text_without_calls_is_left_alone() -> None:
    """White space included."""
    assert _plain(_read([" \n a <tool_call> ", " \n"])) == (" \n a <tool_call>  \n", [])
    assert _plain(_read(["\n" + HEAD + "f" + MIDDLE + "{}" + TAIL + "\n"])) == (None, [("f", "{}")])

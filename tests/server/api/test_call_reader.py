"""Reading calls: what the grammar lets be written comes back, piece by piece as in one, and text stays text."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptspec.server.api.call_reader import CallReader, Part
from adaptspec.server.api.chat import gathered
from adaptspec.server.api.tool_forms import FORMS, HERMES, MISTRAL, ToolForm

NAMES = ("f", "get-it", "mcp.x")
WORDS = st.text(alphabet="ab<tool_c>\n {\"'", max_size=12).filter(lambda text: HERMES.head not in text)
OBJECTS = ["{}", '{"a": "}"}', '{"a": {"b": []}}', '{"a": "\\"}", "b": "\\\\"}', '{"name": "f", "parameters": {}}']
CALL = st.tuples(st.sampled_from(NAMES), st.sampled_from(OBJECTS))
ANSWER = st.lists(WORDS | CALL, max_size=5)
HIDDEN = replace(MISTRAL, token_id=7)  # its token is no text
ALL_FORMS = [*FORMS.values(), HIDDEN]


def read(pieces: list[str], form: ToolForm = HERMES, *, expected: bool = True) -> list[Part]:
    reader = CallReader(expected, form, NAMES)
    return [part for piece in pieces for part in reader.feed(piece)] + list(reader.end())


def plain(parts: list[Part]) -> tuple[str | None, list[tuple[str, str]]]:
    content, calls = gathered(parts)
    return content, [(call.function.name, call.function.arguments) for call in calls]


def among_text(answer: list[str | tuple[str, str]]) -> str:
    return "".join(part if isinstance(part, str) else HERMES.written(*part) for part in answer)


def alone(form: ToolForm, calls: list[tuple[str, str]]) -> str:
    """An answer of calls."""
    before = ("" if form.token_id is not None else form.token) + form.opening
    return before + (form.between or "").join(form.written(*one) for one in calls) + form.closing


def cut(text: str, places: list[int]) -> list[str]:
    ends = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[a:b] for a, b in pairwise(ends)]


PLACES = st.lists(st.integers(0, 200), max_size=8)


@given(
    form=st.sampled_from(ALL_FORMS),
    calls=st.lists(CALL, min_size=1, max_size=3),
    text=WORDS,
    places=PLACES,
    length=st.integers(0, 300),
)
def test_pieces_say_what_the_whole_says_in_every_form(
    form: ToolForm, calls: list[tuple[str, str]], text: str, places: list[int], length: int
) -> None:
    """Whatever the answer is, and wherever it ends."""
    for answer in (alone(form, calls), text + alone(form, calls), alone(form, calls) + text):
        shown = answer[:length]
        assert plain(read(cut(shown, places), form)) == plain(read([shown], form))


@given(answer=ANSWER)
def test_calls_come_back_as_they_were_written(answer: list[str | tuple[str, str]]) -> None:
    """And nothing of them is left in the text."""
    content, calls = plain(read(list(among_text(answer))))
    assert calls == [part for part in answer if not isinstance(part, str)]
    assert HERMES.head not in (content or "")


@pytest.mark.parametrize("form", ALL_FORMS)
@given(calls=st.lists(CALL, min_size=1, max_size=3), blank=st.sampled_from(["", "\n", " \n "]))
def test_calls_of_every_form_come_back(form: ToolForm, calls: list[tuple[str, str]], blank: str) -> None:
    """White space around them is no text."""
    if form.between is None:
        calls = calls[:1]
    reader = CallReader(True, form, NAMES)
    parts = list(reader.feed(blank + alone(form, calls) + blank)) + list(reader.end())
    assert plain(parts) == (None, calls)
    assert reader.whole


TEXTS = [
    '{"name": "Ann", "parameters": 5}',
    '{"name": "f", "age": 3}',
    '{"name": "unknown", "parameters": {}}',
    '{"name": "f"}',
    '[{"name": "Ann"}]',
    '[{"name": "unknown", "arguments": {}}]',
    'So: {"name": "f", "parameters": {}}',
    'So: [{"name": "f", "arguments": {}}]',
    '```json\n{"name": "f", "parameters": {}}\n```',
    "[TOOL_CALLS]",
    " \n a <tool_call> \n",
]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("form", ALL_FORMS)
def test_text_that_only_resembles_a_call_stays_text(form: ToolForm, text: str) -> None:
    """An answer in JSON, other names, a form within other text."""
    assert plain(read(list(text), form)) == (text, [])


@pytest.mark.parametrize("form", ALL_FORMS)
def test_an_answer_that_may_call_nothing_has_no_calls(form: ToolForm) -> None:
    """Where no tools were sent, or none may be called, all of it is text at once."""
    text = alone(form, [("f", "{}")])
    reader = CallReader(False, form, NAMES)
    assert [part for letter in text for part in reader.feed(letter)] != []
    assert plain(read(list(text), form, expected=False)) == (text, [])


@pytest.mark.parametrize("form", ALL_FORMS)
def test_a_call_that_is_cut_short_is_not_whole(form: ToolForm) -> None:
    """Its arguments are not to be used."""
    whole = alone(form, [("f", '{"a": 1}')])
    whole = whole[: len(whole) - len(form.closing)]
    for size in range(whole.index('{"a') + 1, len(whole)):
        reader = CallReader(True, form, NAMES)
        assert plain([*reader.feed(whole[:size]), *reader.end()])[0] is None
        assert not reader.whole

"""Tools: what the grammar lets through, and what a model is told."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptspec.models.grammars import Grammars
from adaptspec.server.api.chat import ChatBody, ChatReply, gathered
from adaptspec.server.api.messages import Message
from adaptspec.server.api.tools import HEAD, MIDDLE, TAIL, CallReader, NamedTool, Part, Tool, tool_grammar, written_out
from adaptspec.types import Completion, Delta, FinishReason, SpeculationStats, Timings

F = Tool.model_validate(
    {
        "type": "function",
        "function": {
            "name": "f",
            "description": "Does it.",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer"}},
                "required": ["a"],
                "additionalProperties": False,
            },
        },
    }
)
G = Tool.model_validate({"type": "function", "function": {"name": "g"}})
NAMED = NamedTool.model_validate({"type": "function", "function": {"name": "g"}})


def call(name: str, arguments: str) -> str:
    return HEAD + name + MIDDLE + arguments + TAIL


ONE, OTHER = call("f", '{"a": 1}'), call("g", "{}")


@pytest.mark.parametrize(
    ("choice", "parallel", "good", "bad"),
    [
        ("auto", True, ["", "hello", ONE, f"x {ONE} y {OTHER} z"], [call("h", "{}"), call("f", "{}"), "<tool_call>x"]),
        (None, False, ["", "hello", f"x {ONE}"], [ONE + OTHER]),
        ("required", True, [ONE, f"{ONE}\n{OTHER}"], ["hello", f" {ONE}", ""]),
        ("required", False, [OTHER], [f"{ONE}\n{OTHER}", ""]),
        (NAMED, True, [OTHER], [ONE, "hello", f"{OTHER}\n{OTHER}"]),
    ],
)
def test_only_whole_calls_of_known_tools_are_let_through(
    tokenizer: Any, choice: Any, parallel: bool, good: list[str], bad: list[str]
) -> None:
    """Names, arguments and how many: all as asked for."""
    grammar = tool_grammar([F, G], choice, parallel=parallel)
    assert grammar is not None
    grammars = Grammars(tokenizer, 260, (1,))

    def fits(text: str) -> bool:
        tokens = [*tokenizer.encode(text, add_special_tokens=False), 1]
        return grammars.start(grammar).valid(tokens) == len(tokens)

    assert [text for text in good if not fits(text)] == []
    assert [text for text in bad if fits(text)] == []


def test_no_tools_or_none_of_them_need_no_grammar() -> None:
    """Then any text will do."""
    assert tool_grammar([], None, parallel=True) is None
    assert tool_grammar([F], "none", parallel=True) is None


def test_templates_without_tools_get_everything_as_text() -> None:
    """What can be called, what was called and what came of it."""
    calls = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}]
    messages = [
        Message(role="user", content="do it"),
        Message.model_validate({"role": "assistant", "tool_calls": calls}),
        Message(role="tool", content="done", tool_call_id="c"),
    ]
    system, user, called, result = written_out([message.plain() for message in messages], [F])
    assert system["role"] == "system"
    assert json.dumps(F.plain()["function"]) in system["content"]
    assert user == {"role": "user", "content": "do it"}
    assert called == {"role": "assistant", "content": ONE}
    assert result == {"role": "user", "content": "<tool_response>\ndone\n</tool_response>"}
    (said,) = written_out([{"role": "system", "content": "Be kind."}], [F])
    assert said["content"].startswith("Be kind.")


@pytest.mark.parametrize(("end", "finish"), [(TAIL, "tool_calls"), ("", "stop")])
def test_a_call_that_a_stop_string_cut_short_is_none_to_make(end: str, finish: str) -> None:
    """Its arguments are no JSON."""
    text = f'{HEAD}f{MIDDLE}{{"a": 1}}{end}'
    done = Completion("r", text, (1,), 1, FinishReason.STOP, SpeculationStats(), Timings(0.0, 0.0, 0.0, 1.0))
    asked = {"messages": [{"role": "user", "content": "x"}], "tools": [F.model_dump()]}
    reply = ChatReply("tiny", ChatBody.model_validate(asked), lambda _: b"")
    assert reply.choice(0, done).finish_reason == finish
    assert [*reply.chunks(0, Delta("r", text, (1,), done), first=True)][-1]["finish_reason"] == finish


WORDS = st.text(alphabet="ab<tool_c>\n {\"'", max_size=12).filter(lambda text: HEAD not in text)
CALL = st.tuples(st.sampled_from(["f", "get-it"]), st.sampled_from(["{}", '{"a": "}"}', '{"a": {"b": []}}']))
ANSWER = st.lists(WORDS | CALL, max_size=5)


def _read(pieces: list[str]) -> list[Part]:
    reader = CallReader()
    return [part for piece in pieces for part in reader.feed(piece)] + list(reader.end())


def _plain(parts: list[Part]) -> tuple[str | None, list[tuple[str, str]]]:
    content, calls = gathered(parts)
    return content, [(call.function.name, call.function.arguments) for call in calls]


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

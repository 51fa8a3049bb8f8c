"""Tools: what the grammar lets through, and what a model is told."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adaptspec.models.grammars import Grammars
from adaptspec.server.chat import ChatDialect
from adaptspec.server.messages import Message
from adaptspec.server.tools import HEAD, MIDDLE, TAIL, NamedTool, Tool, tool_grammar, written_out
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
    dialect = ChatDialect(lambda _: b"", calls=True)
    assert dialect.choice(0, done)["finish_reason"] == finish
    assert [*dialect.chunks(0, Delta("r", text, (1,), done), first=True)][-1]["finish_reason"] == finish

"""Messages as chat templates get them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.models.tokenization import TokenBytes
from adaptspec.results import Completion, Delta, FinishReason, SpeculationStats, Timings
from adaptspec.server.api.body import parse
from adaptspec.server.api.chat import ChatRequest, ChatWriter, Conversation
from adaptspec.server.api.fields import MAX_WARNINGS
from adaptspec.server.api.messages import CALL_OF_FUNCTION, Message
from adaptspec.server.api.tool_forms import HERMES, ToolForm
from tests.conftest import tiny_tokenizer


@pytest.mark.parametrize(("written", "read"), [('{"a": 1}', {"a": 1}), ("", {}), ("{broken", "{broken")])
def test_arguments_are_objects_where_they_can_be_read(written: str, read: object) -> None:
    """Templates write objects out themselves; what a client broke stays as it is."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": written}}
    message = Message.model_validate({"role": "assistant", "content": None, "tool_calls": [call]})
    assert message.plain()["tool_calls"][0]["function"]["arguments"] == read
    assert message.plain()["content"] == ""


USER = {"role": "user", "content": "x"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
RESULT = {"role": "tool", "tool_call_id": "c", "content": "3"}
# Messages of histories that other programs wrote, what a chat template gets of them in addition to role and content,
# the text that is their content, and what the warning names.
HISTORY: dict[str, tuple[dict[str, Any], dict[str, Any], str, str | None]] = {
    "name of a user": (USER | {"name": "ann"}, {"name": "ann"}, "x", None),
    "name of an assistant": ({"role": "assistant", "content": "x", "name": "bob"}, {"name": "bob"}, "x", None),
    "name of a tool": (RESULT | {"name": "f"}, {"name": "f", "tool_call_id": "c"}, "3", None),
    "reasoning_content": (
        {"role": "assistant", "content": "x", "reasoning_content": "hm"},
        {"reasoning_content": "hm"},
        "x",
        None,
    ),
    "reasoning": (
        {"role": "assistant", "content": "x", "reasoning": "hm", "reasoning_details": [{"type": "reasoning.text"}]},
        {"reasoning_content": "hm"},
        "x",
        "messages[].reasoning_details",
    ),
    "a thinking part": (
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "x"}]},
        {},
        "x",
        "content[].thinking",
    ),
    "cache_control": (
        {"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]},
        {},
        "x",
        None,
    ),
    "parts of responses": (
        {"role": "user", "content": [{"type": "input_text", "text": "x"}, {"type": "output_text", "text": "y"}]},
        {},
        "x\ny",
        None,
    ),
    "a refusal part": ({"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}, {}, "no", None),
    "a refusal": ({"role": "assistant", "content": None, "refusal": "no"}, {}, "no", None),
    "an empty result": ({"role": "tool", "tool_call_id": "c", "content": None}, {"tool_call_id": "c"}, "", None),
    "an older result": (
        {"role": "function", "name": "f", "content": "3"},
        {"name": "f", "tool_call_id": CALL_OF_FUNCTION},
        "3",
        None,
    ),
    "an older call": (
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {
            "tool_calls": [
                {"type": "function", "id": CALL_OF_FUNCTION, "function": {"name": "f", "arguments": {}}},
            ]
        },
        "",
        None,
    ),
    "index of a call": (
        {"role": "assistant", "content": "", "tool_calls": [CALL | {"index": 0}]},
        {"tool_calls": [{"type": "function", "id": "c", "function": {"name": "f", "arguments": {"a": 1}}}]},
        "",
        None,
    ),
    "a call of no type and other keys": (
        {
            "role": "assistant",
            "tool_calls": [
                {
                    "id": "c",
                    "function": {"name": "f", "arguments": None, "description": "d", "x": 1},
                    "extra_content": 1,
                }
            ],
        },
        {"tool_calls": [{"type": "function", "id": "c", "function": {"name": "f", "arguments": {}}}]},
        "",
        "tool_calls[].extra_content",
    ),
    "a call of a custom tool": (
        {
            "role": "assistant",
            "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "patch", "input": '*** "x"\né'}}],
        },
        {
            "tool_calls": [
                {"type": "function", "id": "c", "function": {"name": "patch", "arguments": {"input": '*** "x"\né'}}}
            ]
        },
        "",
        "tool_calls[] of the type custom",
    ),
}


@pytest.mark.parametrize("case", HISTORY)
def test_histories_of_other_programs_are_read(case: str) -> None:
    """What matters reaches the chat template; what is dropped and might matter to somebody is named."""
    message, more, text, named = HISTORY[case]
    body = parse(ChatRequest, json.dumps({"messages": [USER, message, USER]}).encode())
    plain = body.messages[1].plain()
    role = "tool" if message["role"] == "function" else message["role"]
    assert plain == {"role": role, "content": text} | more
    assert [named in said for said in body.warnings.texts][:1] == ([] if named is None else [True])


def answering(asked: ChatRequest, form: ToolForm = HERMES) -> ChatWriter:
    """Writes the answer to a request of one choice."""
    return ChatWriter("id", "tiny", Conversation(asked, [], form, None), TokenBytes(tiny_tokenizer()))


def _answered(text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The message of an answer, whole and put together from the deltas of its stream."""
    asked = {"messages": [USER], "tools": [{"function": {"name": "f"}}]}
    done = Completion("r", text, (1,), 1, FinishReason.STOP, SpeculationStats(), Timings(0.0, 0.0, 0.0, 1.0))
    writer = answering(ChatRequest.model_validate(asked))
    put: dict[str, Any] = {}
    for index, letter in enumerate(text):
        last = done if index == len(text) - 1 else None
        for chunk in writer.chunks(0, Delta("r", letter, (1,), last), first=index == 0):
            for key, value in chunk["delta"].items():
                if key == "tool_calls":
                    _add_calls(put.setdefault(key, []), value)
                else:
                    put[key] = put.get(key, "") + value
    whole: dict[str, Any] = writer.choice(0, done).message.written()
    return whole, put


def _add_calls(calls: list[dict[str, Any]], more: list[dict[str, Any]]) -> None:
    for call in more:
        if call["index"] == len(calls):
            calls.append({**call, "function": dict(call["function"])})
        else:
            calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]


@pytest.mark.parametrize("text", ["x", "Text\n" + HERMES.written("f", '{"a": 1}'), HERMES.written("f", "{}") * 2])
def test_an_answer_can_be_sent_back(text: str) -> None:
    """As it came, whole or put together from deltas: nothing of it is refused, dropped or named."""
    for answer in _answered(text):
        results = [RESULT | {"tool_call_id": call["id"]} for call in answer.get("tool_calls") or ()]
        body = parse(ChatRequest, json.dumps({"messages": [USER, answer, *results, USER]}).encode())
        assert not body.warnings
        plain = body.messages[1].plain()
        assert (plain["content"] or None) == (answer["content"] or None)
        assert [call["id"] for call in plain.get("tool_calls", ())] == [result["tool_call_id"] for result in results]


KEYS = st.text(max_size=70) | st.sampled_from(["name", "content", "cache_control", "index", "id", "refusal", "parsed"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
_READ = set(Message.model_fields) | {"reasoning", "refusal"}


@settings(max_examples=40, deadline=None)
@given(extra=st.lists(st.dictionaries(KEYS, JSON, max_size=5), min_size=1, max_size=6))
def test_other_keys_never_change_what_a_template_gets(extra: list[dict[str, Any]]) -> None:
    """Wherever they stand; and their warnings stay few, short and printable."""
    parts, messages = [{"type": "text", "text": "x"}], []
    for keys in extra:
        added = {key: value for key, value in keys.items() if key not in _READ | {"type", "text"}}
        call = {**CALL, **added, "id": "c", "function": {**added, "name": "f", "arguments": "{}"}}
        messages.append({**added, "role": "assistant", "content": [{**added, **parts[0]}], "tool_calls": [call]})
    body = parse(ChatRequest, json.dumps({"messages": messages}).encode())
    plain = {"role": "assistant", "content": "x"}
    called = {"type": "function", "id": "c", "function": {"name": "f", "arguments": {}}}
    assert [message.plain() for message in body.messages] == [plain | {"tool_calls": [called]}] * len(messages)
    written = body.warnings.written().get("warnings", [])
    assert len(written) <= MAX_WARNINGS + 1
    assert all(len(text) <= 300 and text.isprintable() for text in written)

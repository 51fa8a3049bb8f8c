"""What chat a response asks for, and that refusals speak of responses."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from adaptspec.server import limits
from adaptspec.server.api.body import parse
from adaptspec.server.api.responses import ResponsesRequest, to_chat

PATH = "/v1/responses"
TOOL: Any = {"type": "function", "name": "see", "parameters": {"type": "object"}, "strict": True}


def test_calls_belong_to_the_message_before_them() -> None:
    """As a chat has them."""
    body = ResponsesRequest.model_validate(
        {
            "input": [
                {"role": "assistant", "content": "I look."},
                {"type": "function_call", "call_id": "a", "name": "see", "arguments": "{}"},
                {"type": "function_call", "call_id": "b", "name": "see", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "a", "output": "x"},
            ]
        }
    )
    first, second = to_chat(body).messages
    assert [call.id for call in first.tool_calls or ()] == ["a", "b"]
    assert (first.content, second.role, second.tool_call_id) == ("I look.", "tool", "a")


USER = {"role": "user", "content": "x"}
# Items as Codex, openai-agents and others send them: the message that they become, and what the warning names.
ITEMS: dict[str, tuple[dict[str, Any], dict[str, Any] | None, str | None]] = {
    "an output of parts": (
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "a"}] * 2},
        {"role": "tool", "content": "a\na", "tool_call_id": "c"},
        None,
    ),
    "an output without text": (
        {
            "type": "function_call_output",
            "call_id": "c",
            "output": None,
            "status": None,
            "name": "see",
            "caller": {"type": "direct"},
        },
        {"role": "tool", "content": "", "tool_call_id": "c"},
        None,
    ),
    "a message with a phase": (
        {
            "type": "message",
            "role": "assistant",
            "phase": "commentary",
            "content": [{"type": "output_text", "text": "a"}],
        },
        {"role": "assistant", "content": "a"},
        None,
    ),
    "a call whose arguments are null": (
        {"type": "function_call", "call_id": "c", "name": "see", "arguments": None, "namespace": None},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "id": "c", "function": {"name": "see", "arguments": {}}}],
        },
        None,
    ),
    "a refusal": (
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        {"role": "assistant", "content": "no"},
        None,
    ),
    "a part with a hint for a cache": (
        {
            "role": "user",
            "content": [{"type": "input_text", "text": "a", "prompt_cache_breakpoint": {"mode": "explicit"}}],
        },
        {"role": "user", "content": "a"},
        None,
    ),
    "a search": ({"type": "web_search_call", "id": "ws_1", "status": "completed"}, None, "web_search_call"),
}


@pytest.mark.parametrize("case", ITEMS)
def test_items_of_other_programs_are_read_or_dropped_and_named(case: str) -> None:
    """Nothing is lost without a warning."""
    item, message, named = ITEMS[case]
    body = parse(ResponsesRequest, json.dumps({"input": [USER, item, USER]}).encode())
    between = [one.plain() for one in to_chat(body).messages][1:-1]
    assert between == ([] if message is None else [message])
    assert [named in text for text in body.warnings.texts] == ([] if named is None else [True])


CALL = {"type": "function_call", "call_id": "a", "name": "see", "arguments": "{}"}
SEARCH = {"type": "web_search_call", "id": "ws_1"}
SILENT = {"role": "user", "content": None}


@pytest.mark.parametrize(
    ("fields", "message", "param"),
    [
        ({"input": [SILENT], "instructions": "x"}, "input[0].content is missing", "input[0].content"),
        ({"input": [USER, CALL, CALL, SILENT]}, "input[3].content is missing", "input[3].content"),
        ({"input": [SEARCH, SILENT]}, "input[1].content is missing", "input[1].content"),
        ({"input": [SEARCH, {"role": "judge", "content": "x"}]}, "`input[1].role` is `judge`", "input[1].role"),
        ({"input": [SEARCH]}, "input has no item that this server can use", "input"),
        ({"input": []}, "send at least 1 item", "input"),
        ({"input": [USER, *[CALL] * 130]}, "more than 128 items of the type function_call in one turn", "input"),
        ({"input": "x" * 5, "max_output_tokens": 999}, "8 in the input, 999 in the completion", "max_output_tokens"),
        ({"input": "x", "top_logprobs": 2}, 'include: ["message.output_text.logprobs"]', "top_logprobs"),
        ({"input": "x", "logprobs": True}, "(did you mean include?)", "logprobs"),
    ],
)
async def test_refusals_name_items_as_the_client_sent_them(post: Any, fields: Any, message: str, param: str) -> None:
    status, body = await post(PATH, **fields)
    assert (status, body["error"]["param"]) == (400, param)
    assert message in body["error"]["message"]


def test_instructions_do_not_count_as_an_item() -> None:
    body = parse(ResponsesRequest, json.dumps({"instructions": "x", "input": [USER] * limits.MESSAGES}).encode())
    assert len(to_chat(body).messages) == limits.MESSAGES + 1


def thought(*texts: str, place: str = "content", **more: Any) -> dict[str, Any]:
    kind = "reasoning_text" if place == "content" else "summary_text"
    return {"type": "reasoning", "id": "rs_1", place: [{"type": kind, "text": text} for text in texts], **more}


ANSWER = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x"}]}
RESULT = {"type": "function_call_output", "call_id": "a", "output": "y"}


@pytest.mark.parametrize(
    ("items", "thoughts"),
    [
        ([thought("a"), ANSWER], ["a"]),
        ([thought("a", summary=[], encrypted_content=None, status="completed"), ANSWER], ["a"]),
        ([thought("a", "b"), ANSWER], ["a\nb"]),
        ([thought("a", place="summary", content=[]), ANSWER], ["a"]),
        ([thought("a", summary=[{"type": "summary_text", "text": "short"}]), ANSWER], ["a"]),
        ([thought("a", place="summary", encrypted_content="x"), ANSWER], ["a"]),
        ([thought("a"), CALL, RESULT, thought("b"), ANSWER], ["a", None, "b"]),
        ([thought("a"), ANSWER, CALL, RESULT], ["a", None]),
        ([thought("a"), CALL, thought("b"), {**CALL, "call_id": "b"}, RESULT], ["a\nb", None]),
        ([ANSWER, thought("a"), CALL], ["a"]),
        ([thought("a"), USER, thought("b"), ANSWER], ["a", None, "b"]),
        ([thought("a")], ["a"]),
        ([thought("a"), RESULT], ["a", None]),
    ],
)
def test_reasoning_that_comes_back_belongs_to_the_answer_after_it(items: Any, thoughts: Any) -> None:
    """As `reasoning_content` of chats, so the chat template decides about it; no warning, as nothing is dropped."""
    body = parse(ResponsesRequest, json.dumps({"input": [USER, *items, USER]}).encode())
    between = to_chat(body).messages[1:-1]
    assert [message.reasoning_content for message in between] == thoughts
    assert all(message.role == "assistant" for message in between if message.reasoning_content)
    assert not body.warnings.texts


# As Codex CLI sends it, but for the texts.
CODEX: dict[str, Any] = {
    "model": "tiny",
    "instructions": "Be brief.",
    "input": [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "b"}]},
        {"type": "reasoning", "summary": [], "content": None, "encrypted_content": None},
        {"type": "function_call", "name": "shell", "arguments": "{}", "call_id": "c"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "d"}]},
    ],
    "tools": [
        {"type": "function", "name": "shell", "strict": False, "parameters": {"type": "object", "properties": {}}},
        {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark", "definition": "x"}},
        {"type": "web_search", "external_web_access": False},
        {"type": "namespace", "name": "multi", "tools": []},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "k",
    "client_metadata": {"x-codex-installation-id": "7", "turn": {"id": 1}},
    "text": {"verbosity": "low"},
    "truncation": "auto",
}


async def test_a_coding_agent_is_answered(client: Any, engine: Any) -> None:
    """What it loses is named in the last event; what it may call is the function."""
    engine.target = replace(engine.target, context=1024)
    async with client.post(PATH, json=CODEX) as response:
        assert response.status == 200, await response.text()
        last = [line for line in (await response.text()).splitlines() if line.startswith("data: {")][-1]
    response = json.loads(last.removeprefix("data: "))["response"]
    named = ["reasoning", "verbosity", "custom", "web_search", "namespace"]
    assert [name for name in named if any(name in text for text in response["warnings"])] == named
    assert len(response["warnings"]) == len(named)
    assert [tool["name"] for tool in response["tools"]] == ["shell"]
    assert (response["truncation"], response["reasoning"]["effort"]) == ("auto", "medium")
    assert engine.seen[-1].sampling.grammar is not None


@pytest.mark.parametrize(
    "fields",
    [
        {"input": "Hello"},
        {"input": "Hello", "instructions": "Be short."},
        {"input": [{"role": "user", "content": "x"}], "tools": [TOOL], "chat_template_kwargs": {"a": 1}},
    ],
)
async def test_a_prompt_can_be_counted_without_an_answer(post: Any, engine: Any, fields: dict[str, Any]) -> None:
    status, counted = await post(f"{PATH}/input_tokens", **fields)
    assert (status, counted["object"]) == (200, "response.input_tokens")
    assert engine.seen == []
    await post(PATH, **fields)
    assert counted["input_tokens"] == len(engine.seen[-1].prompt)

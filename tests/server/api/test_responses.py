"""What chat a response asks for, and that refusals speak of responses."""

from __future__ import annotations

from typing import Any

import pytest

from adaptspec.server.api.responses import ResponsesBody
from tests.server.api.test_wire import check_error

PATH = "/v1/responses"
TOOL: Any = {"type": "function", "name": "see", "parameters": {"type": "object"}, "strict": True}


def test_calls_belong_to_the_message_before_them() -> None:
    """As a chat has them."""
    body = ResponsesBody.model_validate(
        {
            "input": [
                {"role": "assistant", "content": "I look."},
                {"type": "function_call", "call_id": "a", "name": "see", "arguments": "{}"},
                {"type": "function_call", "call_id": "b", "name": "see", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "a", "output": "x"},
            ]
        }
    )
    first, second = body.chat().messages
    assert [call.id for call in first.tool_calls or ()] == ["a", "b"]
    assert (first.content, second.role, second.tool_call_id) == ("I look.", "tool", "a")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"store": "yes"}, "store"),
        ({"text": {"verbosity": "low"}}, "text"),
        ({"include": ["message.output_text.logprobs"]}, "include[0]"),
        ({"reasoning": {"effort": "some"}}, "reasoning.effort"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"input": []}, "input"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 9999}, "max_output_tokens"),
        ({"text": {"format": {"type": "json_object"}}, "tools": [TOOL]}, "text.format"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"input": "x" * 40_000}, "input"),
        ({"frobnicate": 1}, "frobnicate"),
        ({"input": [{"type": "reasoning"}]}, "input[0]"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_txt"}]}]}, "input[0].content[0].type"),
        ({"temperature": 1e9}, "temperature"),
    ],
)
async def test_refusals_speak_of_responses(post: Any, fields: dict[str, Any], param: str) -> None:
    """Not of the chat within."""
    status, body = await post(PATH, **({"input": "x"} | fields))
    error = check_error(body)
    assert (status, error["param"]) == (400, param)
    assert "max_completion_tokens" not in error["message"]


async def test_who_drafted_is_not_left_out_in_silence(post: Any) -> None:
    status, answer = await post(PATH, input="x", stream=True, adaptspec={"provenance": True})
    assert (status, answer["error"]["param"]) == (400, "adaptspec.provenance")

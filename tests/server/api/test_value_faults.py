"""A wrong value is refused with its field and what to send instead, in words for people who write clients."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from adaptspec.errors import RequestError
from adaptspec.server.api.chat import ChatBody
from adaptspec.server.api.completions import CompletionBody
from adaptspec.server.api.responses import ResponsesBody
from adaptspec.server.api.wire import RequestBody, parse

TALK = {"messages": [{"role": "user", "content": "x"}]}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from(sorted(ChatBody.known - {"messages"})), JSON)
def test_no_value_is_refused_in_the_words_of_a_library(field: str, value: Any) -> None:
    refusals: list[RequestError] = []
    try:
        parse(ChatBody, json.dumps({**TALK, field: value}).encode())
    except RequestError as error:
        refusals.append(error)
    assert all("nput should" not in str(one) and one.param is not None for one in refusals)


# Words of the three bodies, so that objects are nearly right and faults lie deep.
_WORDS = sorted(
    {"type", "function", "name", "tools", "mode", "schema", "json_schema", "strict", "parameters", "content", "role"}
    | {"allowed_tools", "auto", "required", "text", "input_text", "tool_calls", "id", "arguments", "user", "assistant"}
    | {
        "tool",
        "value",
        "json",
        "regex",
        "reasoning",
        "summary",
        "function_call",
        "call_id",
        "output",
        "format",
        "choice",
    }
)
_NEARLY_RIGHT = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 3) | st.sampled_from(_WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_WORDS), inner, max_size=4),
    max_leaves=10,
)
_FIELDS = {
    ChatBody: ("messages", "tools", "tool_choice", "response_format", "structured_outputs", "stream_options", "stop"),
    ResponsesBody: ("input", "tools", "tool_choice", "text", "reasoning", "include", "stop"),
    CompletionBody: ("prompt", "response_format", "structured_outputs", "stop", "logit_bias"),
}
_GOOD: dict[type[RequestBody], dict[str, Any]] = {
    ChatBody: TALK,
    ResponsesBody: {"input": "x"},
    CompletionBody: {"prompt": "x"},
}


@given(st.sampled_from(sorted(_FIELDS, key=str)), st.data())
def test_what_is_nearly_right_is_taken_or_refused(model: type[RequestBody], data: st.DataObject) -> None:
    """Whatever is wrong, at whatever depth: never an error of the server's own."""
    fields = data.draw(st.dictionaries(st.sampled_from(_FIELDS[model]), _NEARLY_RIGHT, min_size=1, max_size=3))
    with suppress(RequestError):
        body = parse(model, json.dumps(_GOOD[model] | fields).encode())
        if isinstance(body, ResponsesBody):
            body.chat()

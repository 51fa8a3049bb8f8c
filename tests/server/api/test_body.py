"""Bodies: what is wrong is found in bounded time and named once, in words for people who write clients.

The texts of refusals are in tests/files/goldens/refusals.json.
"""

from __future__ import annotations

import json
import threading
import tracemalloc
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from pydantic_core import from_json

from adaptspec.errors import RequestError
from adaptspec.server import limits
from adaptspec.server.api import body
from adaptspec.server.api.body import check_depth, check_structure, parse
from adaptspec.server.api.chat import ChatRequest
from adaptspec.server.api.completions import CompletionRequest
from adaptspec.server.api.fields import RequestBody
from adaptspec.server.api.responses import ResponsesRequest, to_chat
from adaptspec.server.api.tokenize import DetokenizeRequest
from adaptspec.server.threads import INLINE
from tests.server.bounds import bounds

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]
GOOD: dict[str, dict[str, Any]] = {COMPLETIONS: {"prompt": "x"}, CHAT: {"messages": HELLO}}


def check_error(body: Any) -> dict[str, Any]:
    assert body.keys() == {"error"}
    error: dict[str, Any] = body["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    assert isinstance(error["type"], str)
    return error


FIELDS = sorted({*CompletionRequest.model_fields, *ChatRequest.model_fields})
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just(HELLO),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(FIELDS) | st.text(), inner, max_size=4),
    max_leaves=12,
)
BODY = st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=6)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=st.sampled_from([COMPLETIONS, CHAT, "/tokenize", "/detokenize"]), body=JSON | BODY, valid=st.booleans())
async def test_no_body_ever_gets_a_server_error(client: Any, path: str, body: Any, valid: bool) -> None:
    if valid and isinstance(body, dict):
        body = GOOD.get(path, {}) | body
    raw = json.dumps(body).encode()
    async with client.post(path, data=raw, headers={"Content-Type": "application/json"}) as response:
        assert response.status in (200, 400, 404)
        if response.status != 200:
            check_error(await response.json())


MANY = {f"k{i:x}": 0 for i in range(10_000)}


@pytest.mark.parametrize(
    ("model", "body", "param"),
    [
        (CompletionRequest, {"prompt": "x", **MANY}, "k0"),
        (CompletionRequest, {"prompt": "x", "adaptspec": {"policy": "off", **MANY}}, "adaptspec.k0"),
        (CompletionRequest, {"prompt": "x", "stop_token_ids": ["a"] * 256}, "stop_token_ids[0]"),
        (ChatRequest, {"messages": [{"role": "user", **MANY}]}, "messages[0].content"),
        (ChatRequest, {"messages": [1] * 4096}, "messages[0]"),
        (ChatRequest, {"messages": [*HELLO, 1, {"role": "user", "contents": ""}]}, "messages[1]"),
        (ChatRequest, {"messages": [{"role": "assistant", "tool_calls": [1] * 128}]}, "messages[0].tool_calls[0]"),
        (ChatRequest, {"messages": HELLO, "tools": [1] * 128}, "tools[0]"),
        (ChatRequest, {"messages": HELLO, "tools": [{"type": "x"}] * 10_000}, "tools"),
        (ResponsesRequest, {"input": [1] * 4096}, "input[0]"),
        (ResponsesRequest, {"input": [{"role": "user", "content": [1] * 10_000}]}, "input[0].content[0]"),
        (ResponsesRequest, {"input": "x", "metadata": MANY}, "metadata"),
        (DetokenizeRequest, {"tokens": ["a"] * 60_000}, "tokens[0]"),
    ],
)
def test_what_is_wrong_is_reported_once_and_not_collected(
    model: type[RequestBody], body: dict[str, Any], param: str
) -> None:
    """A body of 4 MB can be wrong a million times: gathering that took 15 s. What is named is the first of it."""
    with pytest.raises(RequestError) as refused:
        parse(model, json.dumps(body).encode())
    assert refused.value.param is not None
    assert refused.value.param.startswith(param)
    error = refused.value.__cause__
    assert error is None or (isinstance(error, ValidationError) and error.error_count() <= 8)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ('"stop": 5', "`stop` must be a string or a list of strings"),
        ('"max_tokens": 1e300', f"`max_tokens` must be at most {limits.OUTPUT_TOKENS}"),
        (f'"temperature": 1e{"9" * 401}', "`temperature` "),
        (f'"temperature": 1E+{"9" * 401}', "`temperature` "),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_with_what_is_wanted(fields: str, message: str) -> None:
    with pytest.raises(RequestError) as refused:
        parse(CompletionRequest, f'{{"prompt": "x", {fields}}}'.encode())
    assert str(refused.value).startswith(message)


def test_a_name_of_megabytes_is_not_compared_with_those_of_fields() -> None:
    """Looking for what one of 4 MB may have meant took a second, and a hundred megabytes."""
    raw = json.dumps({"prompt": "x", "temperatur" * 100_000: 1}).encode()
    tracemalloc.start()
    try:
        with pytest.raises(RequestError, match="is not a field"):
            parse(CompletionRequest, raw)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 10 * len(raw)


@pytest.mark.parametrize("path", GOOD)
@pytest.mark.parametrize(("spaces", "at_once"), [(0, True), (INLINE, False)])
async def test_large_bodies_are_read_off_the_event_loop(
    client: Any, path: str, spaces: int, at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Streams go on meanwhile. Small ones are read at once."""
    threads: list[threading.Thread] = []

    def noting(*of: Any) -> Any:
        threads.append(threading.current_thread())
        return from_json(*of, allow_inf_nan=False)

    monkeypatch.setattr(body, "read_document", noting)
    raw = json.dumps(GOOD[path] | {"max_tokens": 1}) + " " * spaces
    async with client.post(path, data=raw, headers={"Content-Type": "application/json"}) as response:
        assert response.status == 200
    assert [thread is threading.current_thread() for thread in threads] == [at_once]


LONG = "9" * 5000


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (f'"seed": {LONG}', "seed"),
        (f'"seed": -{LONG}', "seed"),
        (f'"logit_bias": {{"1": {LONG}}}', "logit_bias.1"),
        (f'"stop_token_ids": [1, {LONG}]', "stop_token_ids[1]"),
        (f'"chat_template_kwargs": {{"a": [{LONG}]}}', "chat_template_kwargs.a[0]"),
        (f'"guided_json": {{"const": {LONG}}}', "guided_json.const"),
        (f'"user": "{LONG}", "n": {LONG}', "n"),
    ],
)
def test_a_number_of_thousands_of_digits_is_refused_by_its_field(fields: str, param: str) -> None:
    """Python neither reads nor prints one."""
    with pytest.raises(RequestError, match="more than 400 digits; send a smaller number") as refused:
        parse(ChatRequest, f'{{"messages": {json.dumps(HELLO)}, {fields}}}'.encode())
    assert refused.value.param == param


def test_texts_and_fractions_may_have_thousands_of_digits() -> None:
    raw = f'{{"messages": {json.dumps(HELLO)}, "user": "{LONG}", "temperature": 0.{LONG}}}'
    assert parse(ChatRequest, raw.encode()).user == LONG


NESTED = st.recursive(st.none() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))


@given(NESTED, st.integers(1, 6))
def test_depth_is_the_longest_chain_of_containers(value: Any, most: int) -> None:
    """The cheap look at the bytes never lets deeper bodies through than walking them would."""

    def depth(part: Any) -> int:
        if isinstance(part, dict):
            part = list(part.values())
        return 1 + max(map(depth, part), default=0) if isinstance(part, list) else 0

    document = {"x": value}
    raw = json.dumps(document).encode()
    if depth(document) > most:
        with bounds(json_depth=most), pytest.raises(RequestError, match="nests"):
            check_depth(raw, document)
        return
    with bounds(json_depth=most):
        check_depth(raw, document)


_TEXTS = st.text(alphabet='"\\\\,:[]{}a\u00e9')
_TREES = st.recursive(
    st.none() | st.integers(-5, 5) | _TEXTS, lambda inner: st.lists(inner) | st.dictionaries(_TEXTS, inner)
)


@given(_TREES, st.booleans())
def test_what_a_body_is_made_of_is_counted_without_reading_it(value: Any, ascii_only: bool) -> None:
    """Names, objects and lists, and commas; none of them within strings, whatever is escaped there."""

    def parts(part: Any) -> int:
        if isinstance(part, dict):
            return 1 + len(part) + sum(map(parts, part.values()))
        return 1 + sum(map(parts, part)) if isinstance(part, list) else 0

    def items(part: Any) -> int:
        inner = list(part.values()) if isinstance(part, dict) else part if isinstance(part, list) else []
        return max(len(inner) - 1, 0) + sum(map(items, inner))

    raw = json.dumps(value, ensure_ascii=ascii_only).encode()
    for count, of in ((parts(value), "json_parts"), (items(value), "json_items")):
        with bounds(**{of: max(count, 1)}):
            check_structure(raw)
        if count > 1:
            with (
                bounds(**{of: count - 1}),
                pytest.raises(RequestError, match=f"more than {count - 1} (objects|entries)"),
            ):
                check_structure(raw)


def test_strings_may_hold_whatever_they_like_across_the_pieces_that_are_looked_at() -> None:
    """Megabytes of a text full of commas and braces are one string."""
    with bounds(json_parts=8, json_items=8):
        for text in ('{"a": [1, 2]}, ' * 50_000, '\\", ' * 100_000, "\\" * 199_999 + '"' + ", " * 100_000):
            check_structure(json.dumps({"prompt": text, "n": 1}).encode())
        with pytest.raises(RequestError, match="more than 8 entries"):
            check_structure(json.dumps({"prompt": "x, " * 100_000, "stop": [1] * 10}).encode())


_TALK = {"messages": [{"role": "user", "content": "x"}]}


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from(sorted(ChatRequest.known - {"messages"})), _VALUES)
def test_no_value_is_refused_in_the_words_of_a_library(field: str, value: Any) -> None:
    refusals: list[RequestError] = []
    try:
        parse(ChatRequest, json.dumps({**_TALK, field: value}).encode())
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
    ChatRequest: (
        "messages",
        "tools",
        "tool_choice",
        "response_format",
        "structured_outputs",
        "stream_options",
        "stop",
    ),
    ResponsesRequest: ("input", "tools", "tool_choice", "text", "reasoning", "include", "stop"),
    CompletionRequest: ("prompt", "response_format", "structured_outputs", "stop", "logit_bias"),
}
_GOOD: dict[type[RequestBody], dict[str, Any]] = {
    ChatRequest: _TALK,
    ResponsesRequest: {"input": "x"},
    CompletionRequest: {"prompt": "x"},
}


@given(st.sampled_from(sorted(_FIELDS, key=str)), st.data())
def test_what_is_nearly_right_is_taken_or_refused(model: type[RequestBody], data: st.DataObject) -> None:
    """Whatever is wrong, at whatever depth: never an error of the server's own."""
    fields = data.draw(st.dictionaries(st.sampled_from(_FIELDS[model]), _NEARLY_RIGHT, min_size=1, max_size=3))
    with suppress(RequestError):
        body = parse(model, json.dumps(_GOOD[model] | fields).encode())
        if isinstance(body, ResponsesRequest):
            to_chat(body)

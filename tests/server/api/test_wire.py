"""Bodies: what is wrong is found in bounded time and named once. Refusals are in tests/files/goldens/refusals.json."""

from __future__ import annotations

import json
import threading
import tracemalloc
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from aiohttp import web
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from adaptspec.errors import RequestError
from adaptspec.server.api.chat import ChatBody
from adaptspec.server.api.completions import CompletionBody
from adaptspec.server.api.responses import ResponsesBody
from adaptspec.server.api.tokenize import DetokenizeBody
from adaptspec.server.api.wire import RequestBody, parse
from adaptspec.server.service import SERVICE, SMALL_BODY
from adaptspec.server.threads import Lanes

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


FIELDS = sorted({*CompletionBody.model_fields, *ChatBody.model_fields})
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
        (CompletionBody, {"prompt": "x", **MANY}, "k0"),
        (CompletionBody, {"prompt": "x", "adaptspec": {"policy": "off", **MANY}}, "adaptspec.k0"),
        (CompletionBody, {"prompt": "x", "stop_token_ids": ["a"] * 256}, "stop_token_ids[0]"),
        (ChatBody, {"messages": [{"role": "user", **MANY}]}, "messages[0].content"),
        (ChatBody, {"messages": [1] * 4096}, "messages[0]"),
        (ChatBody, {"messages": [*HELLO, 1, {"role": "user", "contents": ""}]}, "messages[1]"),
        (ChatBody, {"messages": [{"role": "assistant", "tool_calls": [1] * 10_000}]}, "messages[0].tool_calls[0]"),
        (ChatBody, {"messages": HELLO, "tools": [1] * 128}, "tools[0]"),
        (ChatBody, {"messages": HELLO, "tools": [{"type": "x"}] * 10_000}, "tools"),
        (ResponsesBody, {"input": [1] * 4096}, "input[0]"),
        (ResponsesBody, {"input": [{"role": "user", "content": [1] * 10_000}]}, "input[0].content[0]"),
        (ResponsesBody, {"input": "x", "metadata": MANY}, "metadata"),
        (DetokenizeBody, {"tokens": ["a"] * 60_000}, "tokens[0]"),
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


def test_a_name_of_megabytes_is_not_compared_with_those_of_fields() -> None:
    """Looking for what one of 4 MB may have meant took a second, and a hundred megabytes."""
    raw = json.dumps({"prompt": "x", "temperatur" * 100_000: 1}).encode()
    tracemalloc.start()
    try:
        with pytest.raises(RequestError, match="is not a field"):
            parse(CompletionBody, raw)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 10 * len(raw)


T = TypeVar("T")


class WatchedLanes(Lanes):
    """Lanes that keep on which threads work was done."""

    def __init__(self, small: int) -> None:
        super().__init__(small)
        self.threads: set[threading.Thread] = set()

    async def run(self, size: int, work: Callable[[], T]) -> T:
        def noting() -> T:
            self.threads.add(threading.current_thread())
            return work()

        return await super().run(size, noting)


@pytest.mark.parametrize("path", GOOD)
async def test_large_bodies_are_read_off_the_event_loop(client: Any, app: web.Application, path: str) -> None:
    """Streams go on meanwhile. Small ones are read at once."""
    lanes = app[SERVICE].reading = WatchedLanes(SMALL_BODY)
    for fill, here in ((0, True), (SMALL_BODY, False)):
        lanes.threads.clear()
        raw = json.dumps(GOOD[path] | {"max_tokens": 1}) + " " * fill
        async with client.post(path, data=raw, headers={"Content-Type": "application/json"}) as response:
            assert response.status == 200
        assert [thread is threading.current_thread() for thread in lanes.threads] == [here]

"""Bodies: what is wrong is found in bounded time and named once. Refusals are in tests/files/goldens/refusals.json."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from adaptspec.errors import RequestError
from adaptspec.server import service as service_module
from adaptspec.server.api.chat import ChatBody
from adaptspec.server.api.completions import CompletionBody
from adaptspec.server.api.responses import ResponsesBody
from adaptspec.server.api.tokenize import DetokenizeBody
from adaptspec.server.api.warnings import MAX_WARNINGS
from adaptspec.server.api.wire import RequestBody, parse
from adaptspec.server.limits import ServerLimits

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


NULLS = dict.fromkeys(("frobnicate", "guided_json", "grammar", "lora_path", "k" * 5000))


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (COMPLETIONS, NULLS),
        (CHAT, NULLS),
        (
            CHAT,
            {"adaptspec": {"frobnicate": None, "policy": None}, "response_format": {"type": "text", "schema": None}},
        ),
        (COMPLETIONS, {"n": 1.0, "logprobs": 1.0, "seed": 7.0, "top_k": 5.0, "min_tokens": 0.0}),
        (COMPLETIONS, {"n": 1, "best_of": 1, "echo": False, "logprobs": None, "suffix": None, "user": "u"}),
        (CHAT, {"n": 1, "logprobs": False, "tools": [], "tool_choice": "none", "response_format": {"type": "text"}}),
        (CHAT, {"store": False, "metadata": None, "service_tier": "auto", "modalities": ["text"], "stream": False}),
    ],
)
async def test_no_ops_are_accepted_at_their_default(post: Any, path: str, fields: dict[str, Any]) -> None:
    status, _ = await post(path, **GOOD[path], **fields, max_tokens=1)
    assert status == 200


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


MESSAGE = {"role": "user", "content": "x"}


@pytest.mark.parametrize(
    ("model", "body"),
    [
        (ChatBody, {"messages": [MESSAGE | {f"k{i}": 1 for i in range(10_000)}]}),
        (ChatBody, {"messages": [MESSAGE | {f"k{i}": 1} for i in range(4096)]}),
        (ChatBody, {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "a\n" * 99: 1}] * 5000}]}),
        (ChatBody, {"messages": HELLO, "tools": [{"type": f"t{i}"} for i in range(128)]}),
        (ResponsesBody, {"input": [MESSAGE | {f"k{i}": 1} for i in range(4000)]}),
        (ResponsesBody, {"input": [{"type": "reasoning"}, MESSAGE] * 2048}),
    ],
)
def test_dropped_keys_are_named_within_bounds(model: type[RequestBody], body: dict[str, Any]) -> None:
    """However many there are: a few texts of bounded length, and how many more."""
    written = parse(model, json.dumps(body).encode()).warnings.written()["warnings"]
    assert len(written) <= MAX_WARNINGS + 1
    assert all(len(text) <= 300 and "\n" not in text for text in written)


def test_a_name_of_megabytes_is_not_compared_with_those_of_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking for what was meant by one of 4 MB took a second, and a hundred megabytes."""
    compared: list[str] = []

    def noting(word: str, *args: Any, **options: Any) -> list[str]:
        compared.append(word)
        return []

    monkeypatch.setattr("adaptspec.server.api.wire.get_close_matches", noting)
    with pytest.raises(RequestError, match="is not a field"):
        parse(CompletionBody, json.dumps({"prompt": "x", "temperatur" * 100_000: 1}).encode())
    assert [len(word) < 100 for word in compared] == [True]


def test_a_body_of_too_many_parts_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither is its JSON read, nor are its fields looked at."""
    monkeypatch.setattr("adaptspec.server.api.wire.from_json", lambda *args, **options: pytest.fail("it was read"))
    for raw in (b'{"prompt":[' + b"{}," * 50 + b"1]}", b'{"prompt":[' + b"1," * 200 + b"1]}", b"{" + b'"a":1,' * 99):
        with pytest.raises(RequestError, match=r"body ha(s|ve) more than"):
            parse(CompletionBody, raw, ServerLimits(json_parts=40, json_items=100))


@pytest.mark.parametrize("large", [False, True])
async def test_large_bodies_are_read_off_the_event_loop(
    client: Any, monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    """Streams go on meanwhile."""
    threads: list[threading.Thread] = []

    def noting(*args: Any) -> Any:
        threads.append(threading.current_thread())
        return parse(*args)

    monkeypatch.setattr(service_module, "parse", noting)
    fill = " " * (service_module.SMALL_BODY if large else 10)
    for path, body in GOOD.items():
        raw = json.dumps(body | {"max_tokens": 1}) + fill
        async with client.post(path, data=raw, headers={"Content-Type": "application/json"}) as response:
            assert response.status == 200
    assert [thread is threading.current_thread() for thread in threads] == [not large] * 2


@pytest.mark.parametrize("task", ["", " x", "x\n", "\x1b[31m", "x" * 65])
def test_names_of_tasks_may_stand_in_logs_and_pages(task: str) -> None:
    """Any other name is a task of one's own."""
    assert parse(CompletionBody, json.dumps({"prompt": "x", "adaptspec": {"task": "Büro 7/β"}}).encode())
    with pytest.raises(RequestError) as refused:
        parse(CompletionBody, json.dumps({"prompt": "x", "adaptspec": {"task": task}}).encode()).speculation()
    assert refused.value.param == "adaptspec.task"

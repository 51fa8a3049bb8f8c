"""Refusals: every field that is unsupported, unknown, of the wrong type or out of range gets a 400 that names it."""

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
TOOL = {"type": "function", "function": {"name": "f"}}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
HUGE = int("9" * 4000)

BOTH = [
    ({"n": 129}, "n"),
    ({"n": 0}, "n"),
    ({"n": True}, "n"),
    ({"n": "1"}, "n"),
    ({"frobnicate": 1}, "frobnicate"),
    ({"frobnicate": False}, "frobnicate"),
    ({"frobnicate": []}, "frobnicate"),
    ({"temprature": 1}, "temprature"),
    ({"model": 3}, "model"),
    ({"model": ""}, "model"),
    ({"stream": "true"}, "stream"),
    ({"stream": 1}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ({"stream": True, "stream_options": {"chunks": 1}}, "stream_options.chunks"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": "5"}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"max_tokens": 5.5}, "max_tokens"),
    ({"max_tokens": 1e300}, "max_tokens"),
    ({"max_tokens": 2.0**21}, "max_tokens"),
    ({"n": 17.0}, "n"),
    ({"n": 1e9}, "n"),
    ({"max_tokens": HUGE}, "max_tokens"),
    ({"temperature": "0"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"temperature": -1}, "temperature"),
    ({"temperature": HUGE}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.5}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"min_p": 2}, "min_p"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"frequency_penalty": -3}, "frequency_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"seed": 2**63}, "seed"),
    ({"seed": "7"}, "seed"),
    ({"stop": ""}, "stop"),
    ({"stop": 5}, "stop"),
    ({"stop": {}}, "stop"),
    ({"stop": False}, "stop"),
    ({"stop": ["a", 1]}, "stop"),
    ({"stop": ["a"] * 33}, "stop"),
    ({"stop_token_ids": [260]}, "stop_token_ids"),
    ({"stop_token_ids": ["1"]}, "stop_token_ids[0]"),
    ({"min_tokens": 999, "max_tokens": 5}, "min_tokens"),
    ({"ignore_eos": 1}, "ignore_eos"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": {"-1": 1}}, "logit_bias"),
    ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
    ({"logit_bias": {"260": 1}}, "logit_bias"),
    ({"logit_bias": {"42": 101}}, "logit_bias"),
    ({"logit_bias": {"42": "1"}}, "logit_bias.42"),
    ({"adaptspec": {"policy": "nope"}}, "adaptspec.policy"),
    ({"adaptspec": {"policy": 1}}, "adaptspec.policy"),
    ({"adaptspec": {"max_depth": "0"}}, "adaptspec.max_depth"),
    ({"adaptspec": {"max_depth": True}}, "adaptspec.max_depth"),
    ({"adaptspec": {"max_depth": -1}}, "adaptspec.max_depth"),
    ({"adaptspec": {"stop_threshold": "0.5"}}, "adaptspec.stop_threshold"),
    ({"adaptspec": {"stop_threshold": 1.5}}, "adaptspec.stop_threshold"),
    ({"adaptspec": {"depth": 1}}, "adaptspec.depth"),
    ({"adaptspec": []}, "adaptspec"),
    ({"user": 1}, "user"),
]
ONLY_COMPLETIONS = [
    ({"echo": 1}, "echo"),
    ({"logprobs": 21}, "logprobs"),
    ({"logprobs": -1}, "logprobs"),
    ({"max_tokens": -2, "echo": True}, "max_tokens"),
    ({"logprobs": False}, "logprobs"),
    ({"best_of": 2}, "best_of"),
    ({"suffix": "end"}, "suffix"),
    ({"max_completion_tokens": 5}, "max_completion_tokens"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [[]]}, "prompt"),
    ({"prompt": [1, "a"]}, "prompt"),
    ({"prompt": [True]}, "prompt"),
    ({"prompt": ["a", ""]}, "prompt"),
    ({"prompt": None}, "prompt"),
    ({"prompt": [260]}, "prompt"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": [HUGE]}, "prompt"),
    ({"prompt": ["a"] * 129}, "prompt"),
]
ONLY_CHAT = [
    ({"logprobs": 1}, "logprobs"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": False, "top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"echo": True}, "echo"),
    ({"tools": [5]}, "tools[0]"),
    ({"tools": [{"function": {"name": "f", "description": 5, "strict": True}}]}, "tools[0].function.description"),
    ({"tools": [TOOL] * 129}, "tools"),
    ({"tools": [{"type": "web_search"}] * 129}, "tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "h"}}}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": "sometimes"}, "tool_choice"),
    ({"tools": [TOOL], "parallel_tool_calls": 1}, "parallel_tool_calls"),
    ({"tools": [TOOL], "ignore_eos": True}, "ignore_eos"),
    ({"response_format": {"type": "xml"}}, "response_format"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format.json_schema.schema"),
    ({"response_format": {"type": "json_object"}, "min_tokens": 1}, "min_tokens"),
    ({"functions": [1]}, "functions"),
    ({"prediction": {"type": "content"}}, "prediction.content"),
    ({"prediction": {"type": "content", "content": [1]}}, "prediction.content[0]"),
    ({"prediction": {"type": "content", "content": "x" * 40_000}}, "prediction"),
    ({"modalities": ["audio"]}, "modalities"),
    ({"store": "yes"}, "store"),
    ({"metadata": {"a": 1}}, "metadata.a"),
    ({"metadata": {"a": "b" * 513}}, "metadata.a"),
    ({"service_tier": "first class"}, "service_tier"),
    ({"reasoning_effort": "some"}, "reasoning_effort"),
    ({"safety_identifier": 1}, "safety_identifier"),
    ({"prompt_cache_retention": "1h"}, "prompt_cache_retention"),
    ({"prompt_cache_options": {"size": 1}}, "prompt_cache_options.size"),
    ({"verbosity": "lowest"}, "verbosity"),
    ({"moderation": {}}, "moderation"),
    ({"prompt": "x"}, "prompt"),
    ({"max_tokens": 5, "max_completion_tokens": 5}, "max_tokens"),
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [1]}, "messages[0]"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
    ({"messages": [{"role": "user", "content": "x", "tool_call_id": "y"}]}, "messages[0].tool_call_id"),
    ({"messages": [{"role": "user", "content": "x", "tool_calls": [CALL]}]}, "messages[0].tool_calls"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "user", "content": "x", "name": 5}]}, "messages[0].name"),
    ({"messages": [{"role": "user", "content": "x", "name": "x" * 257}]}, "messages[0].name"),
    ({"messages": [{"role": "assistant", "content": "x", "tool_calls": [1]}]}, "messages[0].tool_calls[0]"),
]
CASES = [(path, *case) for path in GOOD for case in BOTH]
CASES += [(COMPLETIONS, *case) for case in ONLY_COMPLETIONS] + [(CHAT, *case) for case in ONLY_CHAT]


def check_error(body: Any) -> dict[str, Any]:
    assert body.keys() == {"error"}
    error: dict[str, Any] = body["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    assert isinstance(error["type"], str)
    return error


async def test_every_refused_field_is_named(post: Any, engine: Any) -> None:
    wrong = []
    for path, fields, param in CASES:
        status, body = await post(path, **(GOOD[path] | fields))
        error = check_error(body)
        if (status, error["param"]) != (400, param) or param.split("[")[0].split(".")[-1] not in error["message"]:
            wrong.append((path, str(fields)[:80], param, status, error))
    assert wrong == []
    assert engine.seen == []


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


async def test_a_misspelt_field_gets_a_hint(post: Any) -> None:
    _, body = await post(COMPLETIONS, prompt="x", temprature=1)
    assert "did you mean temperature?" in body["error"]["message"]
    _, body = await post(COMPLETIONS, prompt="x", adaptspec={"maxdepth": 1})
    assert "did you mean adaptspec.max_depth?" in body["error"]["message"]
    _, body = await post(CHAT, messages=HELLO, stream=True, stream_options={"includeusage": True})
    assert "did you mean stream_options.include_usage?" in body["error"]["message"]
    _, body = await post(COMPLETIONS, prompt="x", structured_outputs={"jason": {}})
    assert "did you mean structured_outputs.json?" in body["error"]["message"]


@pytest.mark.parametrize(
    ("path", "name", "meant"),
    [
        ("/v1/responses", "max_tokens", "max_output_tokens"),
        ("/v1/responses", "response_format", "text.format"),
        ("/v1/responses", "reasoning_effort", "reasoning.effort"),
        (CHAT, "system", "messages"),
        (CHAT, "max_output_tokens", "max_completion_tokens"),
        (COMPLETIONS, "max_new_tokens", "max_tokens"),
    ],
)
async def test_a_field_of_another_api_gets_the_name_that_it_has_here(
    post: Any, path: str, name: str, meant: str
) -> None:
    status, answer = await post(path, **GOOD.get(path, {"input": "x"}), **{name: 1})
    assert (status, answer["error"]["param"]) == (400, name)
    assert answer["error"]["message"].endswith(f"(did you mean {meant}?)")


async def test_a_field_that_is_near_none_gets_no_hint_or_the_fields_of_its_object(post: Any) -> None:
    _, answer = await post(CHAT, messages=HELLO, truncation="auto")
    assert answer["error"]["message"].endswith("leave it out")
    _, answer = await post(COMPLETIONS, prompt="x", structured_outputs={"xml": "a"})
    assert "(its fields are choice, grammar, json, json_object, regex)" in answer["error"]["message"]


async def test_sizes_are_said_plainly(post: Any) -> None:
    _, body = await post(CHAT, messages=[])
    assert body["error"]["message"] == "`messages` is too short; send at least 1 item"
    _, body = await post(COMPLETIONS, prompt="x", model="m" * 300)
    assert body["error"]["message"] == "`model` is too long; send at most 256 characters"
    _, body = await post(COMPLETIONS, prompt="x", model="")
    assert body["error"]["message"] == "`model` is too short; send at least 1 character"


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b'{"prompt": "\\ud800"}', b"[" * 50_000, b'{"prompt": NaN}'],
)
async def test_a_body_that_is_no_json_object_is_refused(client: Any, raw: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    async with client.post(COMPLETIONS, data=raw, headers=headers) as response:
        assert response.status == 400
        check_error(await response.json())


FIELDS = sorted(
    {name for _, fields, _ in CASES for name in fields} | {"prompt", "messages", "min_tokens", "top_k", "repetition"}
)
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

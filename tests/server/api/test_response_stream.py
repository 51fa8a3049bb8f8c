"""Responses as OpenAI's own client reads them, whole and streamed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from aiohttp.test_utils import TestClient, TestServer

from tests.server.live import live_app

SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["fox", "fog"]}},
    "required": ["kind"],
    "additionalProperties": False,
}
TOOL: Any = {"type": "function", "name": "see", "parameters": SCHEMA, "strict": True}


@pytest.fixture
async def api(make_model: Callable[..., Path]) -> AsyncIterator[openai.AsyncOpenAI]:
    paths = [make_model("llama", seed=seed, max_position_embeddings=1024) for seed in (0, 1)]
    with live_app(*paths) as app:
        async with TestClient(TestServer(app)) as client:
            url = str(client.make_url("/v1"))
            async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=20.0) as api:
                yield api


async def _streamed(api: openai.AsyncOpenAI, **body: Any) -> Any:
    """The response at the end of a stream, whose events must add up to it."""
    text, arguments, items, numbers, last = "", "", [], [], None
    async with await api.responses.create(model="tiny", stream=True, **body) as stream:
        async for event in stream:
            numbers.append(event.sequence_number)
            text += event.delta if event.type == "response.output_text.delta" else ""
            arguments += event.delta if event.type == "response.function_call_arguments.delta" else ""
            items += [event.item] if event.type == "response.output_item.done" else []
            last = event
    assert last is not None
    assert numbers == list(range(len(numbers)))
    assert last.type in ("response.completed", "response.incomplete")
    assert items == last.response.output
    assert text == last.response.output_text
    assert arguments == "".join(item.arguments for item in items if item.type == "function_call")
    return last.response


async def test_text_whole_and_streamed(api: openai.AsyncOpenAI) -> None:
    """Same text, same usage; where the tokens ran out the response is incomplete."""
    body: Any = {"input": "Hello", "instructions": "Be brief.", "max_output_tokens": 12, "temperature": 0}
    body["extra_body"] = {"adaptspec": {"prefix_cache": False}}
    whole, streamed = await api.responses.create(model="tiny", **body), await _streamed(api, **body)
    assert whole.output_text == streamed.output_text != ""
    assert (whole.status, whole.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert whole.usage == streamed.usage
    assert whole.usage.output_tokens == 12
    chat = await api.chat.completions.create(
        model="tiny",
        max_tokens=12,
        temperature=0,
        messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}],
    )
    assert chat.choices[0].message.content == whole.output_text


async def test_cached_tokens_are_told_whole_and_streamed(api: openai.AsyncOpenAI) -> None:
    """All of the prompt but its last token, from the second request on."""
    body: Any = {"input": "Hello", "max_output_tokens": 2, "temperature": 0}
    first, whole, streamed = (
        await api.responses.create(model="tiny", **body),
        await api.responses.create(model="tiny", **body),
        await _streamed(api, **body),
    )
    assert first.usage.input_tokens_details.cached_tokens == 0
    for usage in (whole.usage, streamed.usage):
        assert usage.input_tokens_details.cached_tokens == first.usage.input_tokens - 1


async def test_a_schema_and_a_call_and_the_way_back(api: openai.AsyncOpenAI) -> None:
    """`text.format` and tools; the items of an answer are taken back as input."""
    text: Any = {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA, "strict": True}}
    shaped = await api.responses.create(model="tiny", input="What?", text=text, temperature=0, max_output_tokens=99)
    assert shaped.status == "completed"
    assert json.loads(shaped.output_text)["kind"] in ("fox", "fog")
    body: Any = {
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "What?"}]}],
        "tools": [TOOL],
        "tool_choice": {"type": "function", "name": "see"},
        "temperature": 0,
    }
    called, streamed = await api.responses.create(model="tiny", **body), await _streamed(api, **body)
    (call,) = called.output
    assert call.type == "function_call"
    assert json.loads(call.arguments)["kind"] in ("fox", "fog")
    assert [item.arguments for item in streamed.output] == [call.arguments]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "seen"}
    history: Any = [*body["input"], *[item.model_dump() for item in called.output], result]
    again = await api.responses.create(model="tiny", input=history, max_output_tokens=2, temperature=0)
    assert again.usage is not None
    third = await api.responses.create(
        model="tiny", input=[*history, *[item.model_dump() for item in again.output]], max_output_tokens=2
    )
    assert third.usage is not None


async def test_log_probabilities_whole_and_streamed(api: openai.AsyncOpenAI) -> None:
    """One per token of the text, in the order of the tokens; the events' add up to those of the whole."""
    body: Any = {"input": "Hello", "max_output_tokens": 12, "temperature": 0, "top_logprobs": 2}
    body["include"] = ["message.output_text.logprobs"]
    whole, found = await api.responses.create(model="tiny", **body), []
    async with await api.responses.create(model="tiny", stream=True, **body) as stream:
        async for event in stream:
            found += event.logprobs if event.type == "response.output_text.delta" else []
            last = event
    (part,) = whole.output[0].content
    assert [one.model_dump() for one in last.response.output[0].content[0].logprobs] == [
        one.model_dump() for one in found
    ]
    assert [one.token for one in found] == [one.token for one in part.logprobs]
    assert 0 < len(found) <= whole.usage.output_tokens
    assert all(len(one.top_logprobs) == 2 for one in part.logprobs)
    assert bytes(byte for one in part.logprobs for byte in one.bytes).decode(errors="replace") == whole.output_text


async def test_a_whole_response_can_be_sent_back(api: openai.AsyncOpenAI) -> None:
    """With all that the client's own models write for it, and its log-probabilities."""
    first = await api.responses.create(
        model="tiny", input="Hello", max_output_tokens=8, include=["message.output_text.logprobs"]
    )
    called = await api.responses.create(
        model="tiny", input="Look.", tools=[TOOL], tool_choice="required", max_output_tokens=200, temperature=0
    )
    dumped: list[Any] = [item.model_dump() for item in (*first.output, *called.output)]
    results = [
        {"type": "function_call_output", "call_id": item["call_id"], "output": "x"}
        for item in dumped
        if item["type"] == "function_call"
    ]
    assert results
    again = await api.responses.create(
        model="tiny", input=[{"role": "user", "content": "a"}, *dumped, *results], max_output_tokens=2
    )
    assert "warnings" not in again.model_dump()

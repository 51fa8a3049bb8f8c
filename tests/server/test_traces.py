"""Traces over HTTP: begun with the request, told what it became, ended with the answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestClient, TestServer

from adaptspec.server.application import make_app
from adaptspec.telemetry.metrics import Metrics
from adaptspec.types import Request
from tests.server.conftest import Client, FakeEngine

PROMPT = {"prompt": "abc", "max_tokens": 3}


@dataclass
class Noted:
    """A trace that keeps what it is told."""

    operation: str
    came: Mapping[str, str]
    wants_content: bool
    headers: Mapping[str, str] = field(default_factory=lambda: {"traceparent": "00-1-2-01"})
    requests: list[Request] = field(default_factory=list)
    answer: str = ""
    content: list[Any] = field(default_factory=list)
    ends: list[tuple[int, str | None]] = field(default_factory=list)

    def asked(self, requests: Sequence[Request], answer: str, content: Sequence[Mapping[str, str]]) -> None:
        self.requests, self.answer, self.content = list(requests), answer, list(content)

    def end(self, status: int, error: str | None) -> None:
        self.ends.append((status, error))


@dataclass
class Book:
    """Where traces begin."""

    traces: list[Noted] = field(default_factory=list)
    wants_content: bool = False

    def begin(self, operation: str, headers: Mapping[str, str]) -> Noted:
        self.traces.append(Noted(operation, headers, self.wants_content))
        return self.traces[-1]


@pytest.fixture
def book() -> Book:
    return Book()


@pytest.fixture
async def traced(engine: FakeEngine, tokenizer: Any, book: Book) -> AsyncIterator[Client]:
    app = make_app(engine, tokenizer, Metrics(), traces=book)
    async with TestClient(TestServer(app, handler_cancellation=True)) as client:
        yield client


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_is_traced_and_says_where(traced: Client, book: Book, *, stream: bool) -> None:
    async with traced.post("/v1/completions", json=PROMPT | {"stream": stream}) as response:
        await response.read()
    (trace,) = book.traces
    assert response.headers["traceparent"] == "00-1-2-01"
    assert (trace.operation, trace.ends) == ("text_completion", [(200, None)])
    assert trace.answer == response.headers["x-request-id"]
    assert [request.operation for request in trace.requests] == ["text_completion"]
    assert trace.content == []


async def test_a_stream_that_breaks_off_says_so_in_its_trace(traced: Client, book: Book, engine: FakeEngine) -> None:
    """Its status was sent before anybody knew."""
    engine.failing_at = 2
    async with traced.post("/v1/completions", json=PROMPT | {"stream": True}) as response:
        await response.read()
    assert book.traces[0].ends == [(200, "500")]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_response_is_traced_as_the_chat_that_it_is(traced: Client, book: Book, *, stream: bool) -> None:
    """Clients of the newer API are seen as those of the older one, with what they asked."""
    book.wants_content = True
    said = {"input": "Hello", "instructions": "Be brief.", "max_output_tokens": 2, "stream": stream}
    async with traced.post("/v1/responses", json=said) as response:
        await response.read()
    (trace,) = book.traces
    assert response.headers["traceparent"] == "00-1-2-01"
    assert (trace.operation, trace.ends) == ("chat", [(200, None)])
    assert trace.answer == response.headers["x-request-id"]
    assert trace.content == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]


async def test_prompts_are_told_where_that_is_wanted(traced: Client, book: Book) -> None:
    book.wants_content = True
    said = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
    async with traced.post("/v1/chat/completions", json=said) as response:
        assert response.status == 200
    async with traced.post("/v1/completions", json=PROMPT) as response:
        assert response.status == 200
    chat, plain = book.traces
    assert chat.operation == "chat"
    assert chat.content == [{"role": "user", "content": "Hello"}]
    assert plain.content == [{"role": "user", "content": "abc"}]


async def test_refusals_are_traced_with_their_status(traced: Client, book: Book) -> None:
    async with traced.post("/v1/completions", json=PROMPT | {"model": "another"}) as response:
        assert (response.status, response.headers["traceparent"]) == (404, "00-1-2-01")
    assert book.traces[0].ends == [(404, "404")]
    assert book.traces[0].requests == []


async def test_other_routes_are_left_alone(traced: Client, book: Book) -> None:
    for path in ("/health", "/v1/models", "/nowhere"):
        async with traced.get(path) as response:
            assert "traceparent" not in response.headers
    assert book.traces == []


async def test_a_client_that_leaves_ends_its_trace(traced: Client, engine: FakeEngine, book: Book) -> None:
    engine.pause = 0.05
    with pytest.raises(asyncio.TimeoutError):
        await traced.post("/v1/completions", json=PROMPT | {"max_tokens": 100}, timeout=aiohttp.ClientTimeout(0.1))
    while not book.traces[0].ends:
        await asyncio.sleep(0.01)
    assert book.traces[0].ends == [(499, "client_closed_request")]


async def test_responses_are_traced_as_the_chats_they_are(traced: Client, book: Book) -> None:
    async with traced.post("/v1/responses", json={"input": "Hello", "max_output_tokens": 2}) as response:
        assert (response.status, response.headers["traceparent"]) == (200, "00-1-2-01")
    (trace,) = book.traces
    assert (trace.operation, trace.ends) == ("chat", [(200, None)])
    assert [request.operation for request in trace.requests] == ["chat"]

"""Traces, request ids and counts of every request."""

from __future__ import annotations

import asyncio
import random
import string
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestClient, TestServer
from hypothesis import example, given
from hypothesis import strategies as st

from adaptspec.request import Request, SpeculationParams
from adaptspec.results import Completion, FinishReason, SpeculationStats, Timings
from adaptspec.server.app import make_app
from adaptspec.server.middleware import MAX_ID_LENGTH, sanitised
from adaptspec.telemetry.metrics import Metrics
from adaptspec.telemetry.stream import EventStream
from tests.server.conftest import Client, FakeEngine

PROMPT = {"prompt": "abc", "max_tokens": 3}


@dataclass
class Noted:
    """A trace that keeps what is recorded in it."""

    operation: str
    came: Mapping[str, str]
    wants_content: bool
    headers: Mapping[str, str] = field(default_factory=lambda: {"traceparent": "00-1-2-01"})
    requests: list[Request] = field(default_factory=list)
    answer: str = ""
    content: list[Any] = field(default_factory=list)
    ends: list[tuple[int, str | None]] = field(default_factory=list)

    def set_requests(self, requests: Sequence[Request], answer: str, content: Sequence[Mapping[str, str]]) -> None:
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
async def test_an_answer_names_its_trace(traced: Client, book: Book, *, stream: bool) -> None:
    async with traced.post("/v1/completions", json=PROMPT | {"stream": stream}) as response:
        await response.read()
    (trace,) = book.traces
    assert response.headers["traceparent"] == "00-1-2-01"
    assert (trace.operation, trace.ends) == ("text_completion", [(200, None)])
    assert trace.answer == response.headers["x-request-id"]
    assert [request.operation for request in trace.requests] == ["text_completion"]
    assert trace.content == []


async def test_the_trace_of_a_stream_that_breaks_off_has_its_error(
    traced: Client, book: Book, engine: FakeEngine
) -> None:
    """Its status was sent before the failure."""
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


async def test_prompts_are_traced_where_that_is_wanted(traced: Client, book: Book) -> None:
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


async def test_a_client_that_leaves_ends_its_trace(traced: Client, engine: FakeEngine, book: Book) -> None:
    engine.pause = 0.05
    with pytest.raises(asyncio.TimeoutError):
        await traced.post("/v1/completions", json=PROMPT | {"max_tokens": 100}, timeout=aiohttp.ClientTimeout(0.1))
    while not book.traces[0].ends:
        await asyncio.sleep(0.01)
    assert book.traces[0].ends == [(499, "client_closed_request")]


async def test_a_clients_id_comes_back_and_stays_out_of_the_engine(client: Any, engine: Any) -> None:
    body = {"prompt": "x", "max_tokens": 1}
    async with client.post("/v1/completions", json=body, headers={"X-Request-Id": "trace/42"}) as response:
        assert response.headers["x-request-id"] == "trace/42"
        assert (await response.json())["id"] == engine.seen[0].id != "trace/42"


async def test_every_answer_has_one(client: Any) -> None:
    async with client.post("/v1/completions", json={"prompt": "x", "max_tokens": 1}) as response:
        assert response.headers["x-request-id"] == (await response.json())["id"]
    async with client.get("/nowhere") as response:
        assert response.headers["x-request-id"].startswith("req-")


@given(st.text())
@example("x" * 1000)
def test_what_is_echoed_is_short_and_plain(supplied: str) -> None:
    echoed = sanitised(supplied)
    assert len(echoed) <= MAX_ID_LENGTH
    assert all(character.isascii() and character.isprintable() and character not in ' "\\<>' for character in echoed)


WORDS = 500
DONE = Completion("r", "", (1,) * 5, 3, FinishReason.STOP, SpeculationStats("goodput"), Timings(0.0, 0.1, 0.5, 2.5))


async def series(client: Client) -> set[str]:
    async with client.get("/metrics") as response:
        lines = (await response.text()).splitlines()
    return {line.rpartition(" ")[0] for line in lines if not line.startswith("#")}


async def test_random_models_paths_methods_and_overrides_make_no_series(client: Client) -> None:
    """A hundred of each: a model, a path, a method, a task and a policy that are not served."""
    luck = random.Random(5)

    def word() -> str:
        return "".join(luck.choices(string.ascii_uppercase, k=12))

    async def everything() -> None:
        overrides = {"policy": word(), "task": word()}
        body = {"model": word(), "prompt": "a", "max_tokens": 1, "adaptspec": overrides}
        async with client.post("/v1/completions", json=body) as response:
            assert response.status == 404
        async with client.request(word(), f"/v1/{word()}") as response:
            assert response.status in (400, 404, 405)

    await series(client)
    for _ in range(20):
        await everything()
    before = await series(client)
    for _ in range(100):
        await everything()
    assert await series(client) == before
    assert len(before) < 300


def test_requests_make_no_series() -> None:
    """Ids, prompts and task hints differ from request to request; labels are of what is served."""
    stream = EventStream(interval=60.0)
    metrics = Metrics(stream, model_name="tiny")
    stream.add(metrics)
    stream.start()
    sizes = []
    for number in range(2 * WORDS):
        request = Request(
            f"r{number}", (number,), speculation=SpeculationParams(task=f"task-{number}"), operation="chat"
        )
        stream.finished(request, DONE)
        if number in (0, 2 * WORDS - 1):
            stream.flush()
            sizes.append(sum(len(family.samples) for family in metrics.registry.collect()))
    assert sizes[0] == sizes[1]

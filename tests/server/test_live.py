"""The live feed over HTTP: a snapshot, events that go on from it, an end for all of them, and an answer to overload."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from adaptspec.server.app import make_app
from adaptspec.server.live import LIVE, MAX_WAITING_EVENTS, MAX_WATCHERS, Watcher
from adaptspec.telemetry.live_feed import RECENT_SECONDS, LiveFeed
from adaptspec.telemetry.metrics import Metrics
from adaptspec.telemetry.requests import RequestLog
from adaptspec.telemetry.stream import Clock, EventStream
from tests.control.helpers import record
from tests.server.conftest import Client, FakeEngine
from tests.telemetry.rounds import completion, drafting_round, empty_feed, learned_costs, request


@pytest.fixture
def stream() -> EventStream:
    return EventStream(interval=60.0)


@pytest.fixture
def feed(stream: EventStream) -> Iterator[LiveFeed]:
    log = RequestLog()
    feed = LiveFeed(stream, log)
    stream.add(log)
    stream.add(feed)
    stream.start(drafters=("draft-model",))
    yield feed
    stream.close()


@pytest.fixture
def app(engine: FakeEngine, tokenizer: Any, feed: LiveFeed) -> web.Application:
    return make_app(engine, tokenizer, Metrics(), live=feed, facts={"drafters": ["draft-model"], "journal": False})


@pytest.fixture
async def client(app: web.Application) -> AsyncIterator[Client]:
    app[LIVE].ticks_per_second = 100.0
    async with TestClient(TestServer(app)) as client:
        yield client


async def next_event(response: aiohttp.ClientResponse) -> tuple[str, Any]:
    block = (await asyncio.wait_for(response.content.readuntil(b"\n\n"), 10)).decode()
    name, data = block.rstrip("\n").split("\n")
    return name.removeprefix("event: "), json.loads(data.removeprefix("data: "))


async def test_a_snapshot_says_what_runs_and_what_the_columns_mean(client: Client, stream: EventStream) -> None:
    stream.started(request("a"))
    stream.emit(drafting_round("a"))
    async with client.get("/live/snapshot") as response:
        assert response.headers["Cache-Control"] == "no-store"
        told = await response.json()
    assert told["server"]["drafters"] == ["draft-model"]
    assert told["server"]["default_policy"] == "goodput"
    assert [one["id"] for one in told["running"]] == ["a"]
    bar = dict(zip(told["columns"]["round"], told["running"][0]["rounds"][0], strict=True))
    assert (bar["drafted"], bar["accepted"]) == (3, 2)
    assert {one["name"] for one in told["reasons"]} >= {"policy", "probe", "guard"}


async def test_events_go_on_from_the_snapshot(client: Client, stream: EventStream) -> None:
    stream.started(request("a"))
    stream.emit(drafting_round("a"))
    async with client.get("/live/events") as response:
        assert response.content_type == "text/event-stream"
        name, told = await next_event(response)
        assert (name, len(told["running"][0]["rounds"])) == ("snapshot", 1)
        stream.emit(drafting_round("a"))
        stream.finished(request("a"), completion("a"))
        bars, finished = 0, []
        while not finished:
            name, told = await next_event(response)
            assert name == "update"
            bars += len(told["rounds"].get("a", []))
            finished += told["finished"]
        assert bars == 1
        assert finished[0]["id"] == "a"


async def test_a_second_watcher_costs_the_first_nothing(client: Client, stream: EventStream) -> None:
    """What is read for the opening snapshot of one reaches the others as an update."""
    async with client.get("/live/events") as first:
        assert (await next_event(first))[0] == "snapshot"
        stream.started(request("a"))
        stream.emit(drafting_round("a"))
        async with client.get("/live/events") as second:
            opening = await next_event(second)
            assert opening[0] == "snapshot"
            assert [one["id"] for one in opening[1]["running"]] == ["a"]
        _, told = await next_event(first)
        while not told.get("started"):
            _, told = await next_event(first)
        assert [one["id"] for one in told["started"]] == ["a"]


async def test_quiet_times_have_a_beat(client: Client, app: web.Application) -> None:
    app[LIVE].beat_seconds = 0.05
    async with client.get("/live/events") as response:
        names = [(await next_event(response))[0] for _ in range(4)]
    assert names[0] == "snapshot"
    assert names[-1] == "beat"


async def test_figures_that_expire_are_an_update(
    client: Client, stream: EventStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream.emit(drafting_round("a"))
    async with client.get("/live/events") as response:
        _, snapshot = await next_event(response)
        assert snapshot["summary"]["recent"]["rows"] == 1
        offset = stream.wall_time - time.monotonic() + RECENT_SECONDS
        monkeypatch.setattr(Clock, "wall_offset", lambda _: offset)
        name, update = await next_event(response)
    assert (name, update["summary"]["recent"]) == ("update", None)
    assert update["summary"]["total"]["rows"] == 1


async def test_a_client_too_many_is_refused_with_advice(client: Client, app: web.Application) -> None:
    with ExitStack() as held:
        for _ in range(MAX_WATCHERS):
            held.enter_context(app[LIVE].subscribe())
        async with client.get("/live/events") as response:
            assert response.status == 429
            assert "/live/snapshot" in (await response.json())["error"]["message"]
    async with client.get("/live/events") as response:
        assert response.status == 200


async def test_one_request_is_described(client: Client, stream: EventStream) -> None:
    stream.started(request("a"))
    stream.emit(drafting_round("a"))
    async with client.get("/live/requests/a") as response:
        assert response.headers["Cache-Control"] == "no-store"
        found = await response.json()
    assert found["request"]["id"] == "a"
    assert found["sentence"].startswith("4 tokens in 2 passes (2 saved)")
    assert len(found["rounds"]) == 1
    assert found["now"] > 1.7e9
    async with client.get("/live/requests/b") as response:
        assert (response.status, (await response.json())["error"]["code"]) == (404, "request_not_found")


async def test_an_answer_has_the_speedup_of_the_page(client: Client, app: web.Application, stream: EventStream) -> None:
    stream.costs = learned_costs()
    stream.started(request("a"))
    for _ in range(10):
        stream.emit(replace(record([3], [3]), request_ids=("a",)))
    stream.finished(request("a"), completion("a"))
    answered = await app[LIVE].with_speedup(completion("a"))
    async with client.get("/live/requests/a") as response:
        shown = (await response.json())["request"]["speedup"]
    assert answered.stats.speedup == shown["value"] > 1.0
    assert (await app[LIVE].with_speedup(completion("unknown"))).stats.speedup is None


async def test_streams_end_with_the_server(client: Client) -> None:
    async with client.get("/live/events") as response:
        await next_event(response)
        await asyncio.wait_for(client.server.close(), 10)
        rest = await asyncio.wait_for(response.content.read(), 10)
        assert rest == b"" or rest.endswith(b"\n\n")


async def test_a_client_that_reads_nothing_is_disconnected(
    client: Client, app: web.Application, stream: EventStream
) -> None:
    """It fills its socket, then its queue; the server lets go of it and of its events."""
    hub = app[LIVE]
    hub.slow_seconds = 0.2
    async with client.get("/live/events") as response:
        await next_event(response)
        for number in range(400):
            stream.started(request(f"{number}" + "x" * 200_000))
            await asyncio.sleep(0.01)
            if not hub.num_watchers:
                break
        assert not hub.num_watchers


async def test_events_that_wait_for_a_client_are_bounded() -> None:
    """A client that does not read is disconnected long before its socket is full; the others miss nothing."""
    slow, quick = Watcher(), Watcher()
    for number in range(MAX_WAITING_EVENTS + 5):
        for watcher in (slow, quick):
            watcher.put(b"%d" % number)
        assert await quick.events.get() == b"%d" % number
    waiting = [slow.events.get_nowait() for _ in range(slow.events.qsize())]
    assert waiting == [*(b"%d" % number for number in range(MAX_WAITING_EVENTS)), None]
    assert quick.events.empty()


async def test_a_reading_that_fails_is_not_the_last(
    client: Client, stream: EventStream, feed: LiveFeed, caplog: Any
) -> None:
    async with client.get("/live/events") as response:
        await next_event(response)
        changes, failed = feed.changes, []

        def broken() -> Any:
            if not failed:
                failed.append(True)
                raise ValueError("broken")
            return changes()

        feed.changes = broken  # type: ignore[method-assign]
        stream.started(request("a"))
        _, told = await next_event(response)
        while not told.get("started"):
            _, told = await next_event(response)
    assert "could not be read" in caplog.text


async def test_a_fault_of_telemetry_costs_no_answer(engine: FakeEngine, tokenizer: Any) -> None:
    """The figure is left out."""

    def broken(_: str) -> None:
        raise ValueError("a fault of telemetry")

    feed = empty_feed()
    feed.speedup = broken  # type: ignore[method-assign]
    app = make_app(engine, tokenizer, Metrics(), live=feed)  # type: ignore[arg-type]
    async with (
        TestClient(TestServer(app)) as client,
        client.post("/v1/completions", json={"prompt": "x", "max_tokens": 2}) as response,
    ):
        assert response.status == 200
        answer = await response.json()
        assert answer["metrics"]["speculative_decoding"]["adaptspec"]["speedup"] is None


async def test_an_answer_does_not_wait_for_telemetry(engine: FakeEngine, tokenizer: Any) -> None:
    """Nor for a thread of the event loop, all of which may be busy."""
    release = threading.Event()
    feed = empty_feed()
    feed.speedup = lambda _: release.wait(60.0)  # type: ignore[assignment,method-assign,return-value]
    app = make_app(engine, tokenizer, Metrics(), live=feed)  # type: ignore[arg-type]
    async with TestClient(TestServer(app)) as client:
        busy = [asyncio.create_task(asyncio.to_thread(release.wait, 60.0)) for _ in range(40)]
        async with client.post("/v1/completions", json={"prompt": "x", "max_tokens": 2}) as response:
            assert response.status == 200
            assert not release.is_set()
        release.set()
        await asyncio.gather(*busy)

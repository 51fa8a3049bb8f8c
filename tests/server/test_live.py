"""The live feed over HTTP: a snapshot, events that go on from it, an end for all of them, and an answer to overload."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from adaptspec.server.application import make_app
from adaptspec.server.live import LIVE, MOST_WATCHERS, WAITING_EVENTS, Watchers
from adaptspec.telemetry.live_feed import LiveFeed
from adaptspec.telemetry.metrics import Metrics
from adaptspec.telemetry.request_store import RequestStore
from tests.server.conftest import Client, FakeEngine
from tests.telemetry.test_live_feed import completion, request, round_of


@pytest.fixture
def store() -> Iterator[RequestStore]:
    store = RequestStore(pause=60.0)
    store.start(8)
    yield store
    store.close()


@pytest.fixture
def feed(store: RequestStore) -> LiveFeed:
    return LiveFeed(store)


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


async def test_a_snapshot_says_what_runs_and_what_the_columns_mean(client: Client, store: RequestStore) -> None:
    store.started(request("a"))
    store.emit(round_of("a"))
    async with client.get("/live/snapshot") as response:
        assert response.headers["Cache-Control"] == "no-store"
        told = await response.json()
    assert told["server"]["drafters"] == ["draft-model"]
    assert told["server"]["default_policy"] == "goodput"
    assert [one["id"] for one in told["running"]] == ["a"]
    bar = dict(zip(told["columns"]["round"], told["running"][0]["rounds"][0], strict=True))
    assert (bar["drafted"], bar["accepted"]) == (3, 2)
    assert {one["name"] for one in told["reasons"]} >= {"policy", "probe", "guard"}


async def test_events_go_on_from_the_snapshot(client: Client, store: RequestStore) -> None:
    store.started(request("a"))
    store.emit(round_of("a"))
    async with client.get("/live/events") as response:
        assert response.content_type == "text/event-stream"
        name, told = await next_event(response)
        assert (name, len(told["running"][0]["rounds"])) == ("snapshot", 1)
        store.emit(round_of("a"))
        store.finished(request("a"), completion("a"))
        bars, finished = 0, []
        while not finished:
            name, told = await next_event(response)
            assert name == "update"
            bars += len(told["rounds"].get("a", []))
            finished += told["finished"]
        assert bars == 1
        assert finished[0]["id"] == "a"


async def test_a_second_watcher_costs_the_first_nothing(client: Client, store: RequestStore) -> None:
    """What is read for the opening snapshot of one reaches the others as an update."""
    async with client.get("/live/events") as first:
        assert (await next_event(first))[0] == "snapshot"
        store.started(request("a"))
        store.emit(round_of("a"))
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


async def test_one_too_many_is_told_what_to_do(client: Client, app: web.Application) -> None:
    watchers = app[LIVE].watchers
    held = [watchers.one_more() for _ in range(MOST_WATCHERS)]
    for one in held:
        one.__enter__()
    async with client.get("/live/events") as response:
        assert response.status == 429
        assert "/live/snapshot" in (await response.json())["error"]["message"]
    for one in held:
        one.__exit__(None, None, None)


async def test_streams_end_with_the_server(client: Client) -> None:
    async with client.get("/live/events") as response:
        await next_event(response)
        await asyncio.wait_for(client.server.close(), 10)
        rest = await asyncio.wait_for(response.content.read(), 10)
        assert rest == b"" or rest.endswith(b"\n\n")


async def test_a_client_that_takes_nothing_is_cut_off(client: Client, app: web.Application) -> None:
    """It fills its socket, then its queue; the server lets go of it, and of what it was to be sent."""
    desk = app[LIVE]
    desk.slow_seconds = 0.2
    async with client.get("/live/events") as response:
        await next_event(response)
        for _ in range(400):
            desk.watchers.tell(b"x" * 200_000)
            await asyncio.sleep(0.005)
            if not desk.watchers:
                break
        assert not desk.watchers


async def test_a_slow_watcher_is_let_go_and_the_others_miss_nothing() -> None:
    """What waits for one that takes nothing is bounded, long before its socket is full."""
    watchers = Watchers()
    with watchers.one_more() as slow, watchers.one_more() as quick:
        for number in range(WAITING_EVENTS + 5):
            watchers.tell(b"%d" % number)
            assert await quick.events.get() == b"%d" % number
        assert (slow.gone, quick.gone) == (True, False)
        assert slow.events.qsize() == WAITING_EVENTS + 1


async def test_a_reading_that_fails_is_not_the_last(
    client: Client, store: RequestStore, feed: LiveFeed, caplog: Any
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
        store.started(request("a"))
        _, told = await next_event(response)
        while not told.get("started"):
            _, told = await next_event(response)
    assert "could not be read" in caplog.text

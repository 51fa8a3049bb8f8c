"""The connection to a server: through restarts, silence and refusals."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext, suppress
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from adaptspec.errors import ServerError
from adaptspec.top.feed import KEPT_REQUESTS, KEPT_ROUNDS, Feed
from tests.top.recorded import recorded, state

SNAPSHOT, UPDATES = recorded()
POLICY = {"id": "goodput", "description": "d", "yaml": "spec: {}\n"}


class Fake:
    """A server that tells a snapshot and so many updates, then ends the connection or falls silent."""

    def __init__(
        self, *, updates: int = 1, silent: bool = False, status: int = 200, snapshot: dict[str, Any] = SNAPSHOT
    ) -> None:
        self.updates, self.silent, self.status, self.snapshot = updates, silent, status, snapshot
        self.asked: list[str] = []
        self.keys: set[str | None] = set()

    async def events(self, http: web.Request) -> web.StreamResponse:
        self.asked.append(http.path)
        self.keys.add(http.headers.get("Authorization"))
        if self.status != 200:
            return web.Response(status=self.status)
        response = web.StreamResponse()
        await response.prepare(http)
        told = [("snapshot", SNAPSHOT), *[("update", update) for update in UPDATES[: self.updates]]]
        data = "".join(f"event: {name}\ndata: {json.dumps(body)}\n\n" for name, body in told).encode()
        for start in range(0, len(data), 7001):  # pieces end where they like
            await response.write(data[start : start + 7001])
        if self.silent:
            await asyncio.sleep(30)
        return response

    async def answer(self, http: web.Request) -> web.Response:
        self.asked.append(http.path)
        return web.json_response(POLICY if "policies" in http.path else self.snapshot, status=self.status)


@asynccontextmanager
async def serving(fake: Fake) -> AsyncIterator[str]:
    app = web.Application()
    app.add_routes([web.get("/live/events", fake.events), web.get("/{rest:.*}", fake.answer)])
    server = TestServer(app)
    await server.start_server()
    try:
        yield str(server.make_url("/"))
    finally:
        await server.close()


async def states(fake: Fake, until: Callable[[list[str]], bool], silence: float = 10.0) -> tuple[Feed, list[str]]:
    """The states that a feed goes through."""
    seen: list[str] = []
    async with serving(fake) as url:
        feed = Feed(url, "k", lambda: seen.append(feed.connection.state), silence=silence, first_wait=0.01)
        following = asyncio.create_task(feed.follow())
        while not until(seen) and not following.done():
            await asyncio.sleep(0.005)
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following
    return feed, seen


async def test_it_comes_back_after_the_server_ended_the_connection() -> None:
    """A restart: lost, then live again, with what was known shown meanwhile."""
    fake = Fake(updates=2)
    feed, seen = await states(fake, lambda seen: seen.count("lost") >= 2)
    assert fake.keys == {"Bearer k"}
    assert seen[:5] == ["live", "live", "live", "lost", "live"]
    assert feed.state is not None
    assert feed.policy is not None
    assert feed.policy.name == "goodput"


async def test_silence_is_noticed() -> None:
    """The network went away without a word: the server has a beat, and it is missed."""
    feed, seen = await states(Fake(silent=True), lambda seen: "lost" in seen, silence=0.05)
    assert seen[-1] == "lost"
    assert "silent" in feed.connection.text


@pytest.mark.parametrize(("status", "words"), [(401, "--api-key"), (404, "no live feed")])
async def test_what_cannot_get_better_ends_it(status: int, words: str) -> None:
    """A missing key, or another program's server: asking again is of no use."""
    with pytest.raises(ServerError, match=words):
        await states(Fake(status=status), lambda seen: False)


async def test_a_full_server_is_asked_again() -> None:
    """503: too many watch already."""
    feed, _ = await states(Fake(status=503), lambda seen: seen.count("lost") >= 2)
    assert "503" in feed.connection.text


async def test_once_asks_for_a_snapshot_only() -> None:
    """And for the policy in force."""
    fake = Fake()
    async with serving(fake) as url:
        feed = Feed(url, None)
        await feed.once()
    assert fake.asked == ["/live/snapshot", "/v1/policies/goodput"]
    assert feed.connection.state == "live"


async def test_once_says_that_nobody_answers() -> None:
    """And what to look at."""
    with pytest.raises(ServerError, match="is the server running there"):
        await Feed("http://127.0.0.1:9", None).once()
    async with serving(Fake(status=500)) as url:
        with pytest.raises(ServerError, match="status 500"):
            await Feed(url, None).once()


def test_updates_add_up_to_what_a_later_snapshot_says() -> None:
    """Requests come, gain rounds and tokens, and go; a second that is told again is replaced."""
    snapshot, updates = recorded()
    made = state()
    gone = {one["id"] for update in updates for one in update["finished"]}
    came = {one["id"] for one in snapshot["running"]} | {one["id"] for update in updates for one in update["started"]}
    assert set(made.running) == came - gone
    assert {seen.told["id"] for seen in made.recent} == gone | {one["id"] for one in snapshot["recent"]}
    assert [second["at"] for second in made.seconds] == sorted({second["at"] for second in made.seconds})
    newest = {second["at"]: second for update in updates for second in update["seconds"]}
    assert [second for second in made.seconds if second["at"] in newest] == [newest[at] for at in sorted(newest)]
    assert made.earnings == updates[-1]["earnings"]


def test_it_does_not_grow_without_bound() -> None:
    """It runs for days beside a server."""
    made = state()
    _, updates = recorded()
    for _ in range(100):
        for update in updates:
            made.update(update)
    assert len(made.recent) == KEPT_REQUESTS
    assert len(made.seconds) <= 12
    assert all(len(seen.bars) <= KEPT_ROUNDS for seen in made.running.values())


async def test_a_feed_of_another_version_is_refused() -> None:
    """Columns that came since are left alone; ones that went would be read as others."""
    columns = SNAPSHOT["columns"]
    for known, changed in (
        (True, {**columns, "round": [*columns["round"], "new"]}),
        (False, {**columns, "task": columns["task"][1:]}),
        (False, {}),
    ):
        async with serving(Fake(snapshot={**SNAPSHOT, "columns": changed})) as url:
            with nullcontext() if known else pytest.raises(ServerError, match="another version"):
                await Feed(url, None).once()

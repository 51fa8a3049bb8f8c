"""The live feed over HTTP: a snapshot as JSON, and the same with everything that follows as server-sent events.

`GET /live/events` opens with an event `snapshot`; `update` follows, at most `TICKS_PER_SECOND` times a second and only
where something has happened, and `beat` where nothing has. All who watch get the same events, once encoded; who cannot
keep up is let go.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from aiohttp import web

from adaptspec import __version__
from adaptspec.decision import REASON_WORDS
from adaptspec.errors import OverloadedError
from adaptspec.server import sse
from adaptspec.server.live_answers import LiveSnapshot
from adaptspec.server.routes import Operation, add_operations
from adaptspec.server.service import SERVICE, Service
from adaptspec.telemetry.live_feed import LiveFeed
from adaptspec.telemetry.live_schema import COLUMNS

TICKS_PER_SECOND = 4.0
BEAT_SECONDS = 5.0
SLOW_SECONDS = 10.0  # a client that takes nothing for so long has gone, or might as well have
MOST_WATCHERS = 32
WAITING_EVENTS = 24  # about five seconds of them
_logger = logging.getLogger(__name__)


class Watcher:
    """One of them: its events in order, then None."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.gone = False  # it was let go, or there is nothing more to say

    def put(self, event: bytes) -> None:
        """Add an event; a watcher that has not taken its events for seconds is let go instead."""
        if self.events.qsize() >= WAITING_EVENTS:
            self.end()
        elif not self.gone:
            self.events.put_nowait(event)

    def end(self) -> None:
        if not self.gone:
            self.gone = True
            self.events.put_nowait(None)


class Watchers:
    """All of them, from one event loop. There are at most `MOST_WATCHERS`."""

    def __init__(self) -> None:
        self._all: set[Watcher] = set()

    def __len__(self) -> int:
        return len(self._all)

    @contextmanager
    def one_more(self) -> Iterator[Watcher]:
        """A watcher for as long as the context lasts. Raises OverloadedError if there are as many as there may be."""
        if len(self._all) >= MOST_WATCHERS:
            raise OverloadedError(f"{MOST_WATCHERS} clients watch already; close a page, or poll /live/snapshot")
        watcher = Watcher()
        self._all.add(watcher)
        try:
            yield watcher
        finally:
            self._all.discard(watcher)

    def tell(self, event: bytes) -> None:
        for watcher in self._all:
            watcher.put(event)

    def end(self) -> None:
        for watcher in self._all:
            watcher.end()


class LiveDesk:
    """Reads the feed for all who watch, on the event loop. `facts` are what a page says of the server itself."""

    ticks_per_second, beat_seconds, slow_seconds = TICKS_PER_SECOND, BEAT_SECONDS, SLOW_SECONDS

    def __init__(self, feed: LiveFeed, service: Service, facts: Mapping[str, Any]) -> None:
        self._feed = feed
        self._service = service
        self._facts = facts
        self.watchers = Watchers()
        self._told = 0.0
        self._last_load: dict[str, Any] = {}

    async def run(self) -> None:
        """Read for ever. What goes wrong in one reading must not end the next."""
        while True:
            await asyncio.sleep(1.0 / self.ticks_per_second)
            self._feed.following = bool(self.watchers)
            if not self.watchers:
                continue
            try:
                await self.settle()
                self.tick()
            except Exception:
                _logger.exception("The live feed could not be read; it goes on with the next second")

    async def settle(self) -> None:
        """Have the feed take in what came so far: milliseconds, which the event loop is spared."""
        await asyncio.to_thread(self._feed.settle)

    def tick(self) -> None:
        """Read once, and tell all who watch what is new."""
        changes, load, now = self._feed.changes(), self._load(), time.time()
        if not changes.empty or load != self._last_load:
            self.watchers.tell(event("update", {"now": round(now, 3), "load": load, **vars(changes)}))
            self._told, self._last_load = now, load
        elif now - self._told >= self.beat_seconds:
            self.watchers.tell(event("beat", {"now": round(now, 3)}))
            self._told = now

    def opening(self) -> dict[str, Any]:
        """A snapshot from which updates go on: who watches already is told first what it has that they have not."""
        with self._feed.lock:
            self.tick()
            self._feed.following = True
            return self.snapshot()

    def snapshot(self) -> dict[str, Any]:
        service, target = self._service, self._service.engine.target
        return {
            "now": round(time.time(), 3),
            "server": {
                "adaptspec": __version__,
                "model": target.name,
                "parameters": target.parameters,
                "context": target.context,
                "policies": list(service.engine.policies),
                "default_policy": service.engine.default_policy,
                **self._facts,
            },
            "reasons": [{"code": r.value, "name": r.name.lower(), "words": words} for r, words in REASON_WORDS.items()],
            "columns": dict(COLUMNS),
            "load": self._load(),
            **self._feed.snapshot(),
        }

    def _load(self) -> dict[str, Any]:
        return {"status": self._service.state, **self._service.load}


LIVE = web.AppKey("live", LiveDesk)


def add_live(app: web.Application, feed: LiveFeed, facts: Mapping[str, Any]) -> None:
    """Add the routes of a feed; it is read from the app's start to its end."""
    app[LIVE] = LiveDesk(feed, app[SERVICE], facts)
    app.cleanup_ctx.append(_reading)
    app.on_shutdown.append(_end)
    add_operations(app, (snapshot, events))


@Operation("get", "/live/snapshot", answer=LiveSnapshot)
async def snapshot(http: web.Request) -> web.Response:
    """What happened lately and happens now.

    Never text of a request.
    """
    await http.app[LIVE].settle()
    return web.json_response(http.app[LIVE].snapshot(), headers={"Cache-Control": "no-store"})


@Operation("get", "/live/events", streams=True, refused=(429,))
async def events(http: web.Request) -> web.StreamResponse:
    """The same, and what follows as it happens.

    Server-sent events without an end. The first is `snapshot`, the answer of GET /live/snapshot; `update` follows
    where something has happened, with `now`, `load`, the `seconds` that differ, requests that `started` and
    `finished`, new `rounds` by request, `earnings` and `missed_rounds`; `beat`, with `now`, where nothing has.
    """
    desk = http.app[LIVE]
    await desk.settle()
    opening = event("snapshot", desk.opening())
    # Nothing may be awaited between the snapshot and here: what happens then would be in neither.
    with desk.watchers.one_more() as watcher:
        response = web.StreamResponse(headers=sse.HEADERS)
        await response.prepare(http)
        try:
            await _write(response, opening, desk.slow_seconds)
            while (waiting := await watcher.events.get()) is not None:
                await _write(response, waiting, desk.slow_seconds)
        except asyncio.TimeoutError:
            if http.transport is not None:
                http.transport.abort()  # it would take no farewell either
    return response


async def _write(response: web.StreamResponse, data: bytes, seconds: float) -> None:
    await asyncio.wait_for(response.write(data), seconds)


def event(name: str, body: Mapping[str, Any]) -> bytes:
    """One event of the feed, which browsers read: they know no NaN."""
    return sse.event(body, name, allow_nan=False)


async def _reading(app: web.Application) -> AsyncGenerator[None, None]:
    task = asyncio.create_task(app[LIVE].run())
    yield
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def _end(app: web.Application) -> None:
    app[LIVE].watchers.end()

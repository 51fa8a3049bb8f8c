"""The live feed over HTTP: a snapshot as JSON, and the same with everything that follows as server-sent events.

`GET /live/events` opens with an event `snapshot`; `update` follows, at most `TICKS_PER_SECOND` times a second and only
where something has happened, and `beat` where nothing has. Knows the feed's calls, not what its figures mean.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from typing import Any

from aiohttp import web

from adaptspec import __version__
from adaptspec.server import sse
from adaptspec.server.service import SERVICE, Service
from adaptspec.server.watchers import Watchers
from adaptspec.telemetry.live_feed import LiveFeed
from adaptspec.telemetry.live_earnings import COMPARED_COLUMNS
from adaptspec.telemetry.live_schema import BAR_COLUMNS
from adaptspec.telemetry.live_seconds import DRAFTER_COLUMNS, TASK_COLUMNS
from adaptspec.types import REASON_WORDS

TICKS_PER_SECOND = 4.0
IDLE_SECONDS = 1.0  # between two readings while nobody watches
BEAT_SECONDS = 5.0
SLOW_SECONDS = 10.0  # a client that takes nothing for so long has gone, or might as well have
_logger = logging.getLogger(__name__)


class LiveDesk:
    """Reads the feed for all who watch, on the event loop. `facts` are what a page says of the server itself."""

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
            await asyncio.sleep(1.0 / TICKS_PER_SECOND if self.watchers else IDLE_SECONDS)
            try:
                await asyncio.to_thread(self._feed.estimate)
                self.tick()
            except Exception:
                _logger.exception("The live feed could not be read; it goes on with the next second")

    def tick(self) -> None:
        """Read once, and tell all who watch what is new."""
        if not self.watchers:
            self._feed.changes()
            return
        changes, load, now = self._feed.changes(strips=True), self._load(), time.time()
        if not changes.empty or load != self._last_load:
            self.watchers.tell(event("update", {"now": round(now, 3), "load": load, **changes.to_json()}))
            self._told, self._last_load = now, load
        elif now - self._told >= BEAT_SECONDS:
            self.watchers.tell(event("beat", {"now": round(now, 3)}))
            self._told = now

    def snapshot(self) -> dict[str, Any]:
        """Everything as of now. Who watches already is told what is new first, so that nobody misses anything."""
        self.tick()
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
            "columns": {
                "round": BAR_COLUMNS,
                "drafter": DRAFTER_COLUMNS,
                "task": TASK_COLUMNS,
                "compared": COMPARED_COLUMNS,
            },
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
    app.add_routes([web.get("/live/snapshot", snapshot), web.get("/live/events", events)])


async def snapshot(http: web.Request) -> web.Response:
    """GET /live/snapshot."""
    return web.json_response(http.app[LIVE].snapshot(), headers={"Cache-Control": "no-store"})


async def events(http: web.Request) -> web.StreamResponse:
    """GET /live/events: until the client leaves, cannot keep up, or the server ends."""
    desk = http.app[LIVE]
    desk.watchers.check_room()
    opening = event("snapshot", desk.snapshot())
    # Nothing may be awaited between the snapshot and here: what happens then would be in neither.
    with desk.watchers.one_more() as watcher:
        response = web.StreamResponse(headers=sse.HEADERS)
        await response.prepare(http)
        try:
            await _write(response, opening)
            while (waiting := await watcher.events.get()) is not None:
                await _write(response, waiting)
        except asyncio.TimeoutError:
            if http.transport is not None:
                http.transport.abort()  # it would take no farewell either
    return response


async def _write(response: web.StreamResponse, data: bytes) -> None:
    await asyncio.wait_for(response.write(data), SLOW_SECONDS)


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

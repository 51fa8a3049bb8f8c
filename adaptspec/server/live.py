"""The live feed over HTTP: a snapshot as JSON, the same as server-sent events with all that follows, and one request.

`GET /live/events` opens with an event `snapshot`; `update` follows, at most `TICKS_PER_SECOND` times a second and only
if something has happened, else `beat` every `BEAT_SECONDS`. All clients get the same events, encoded once. A client
that does not keep up is disconnected.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from aiohttp import web

from adaptspec import __version__
from adaptspec.decision import REASON_WORDS
from adaptspec.errors import OverloadedError
from adaptspec.results import Completion
from adaptspec.server import sse
from adaptspec.server.api.fields import quoted
from adaptspec.server.errors import RefusedError
from adaptspec.server.generation import GENERATION, Generation
from adaptspec.server.routes import Operation, add_operations
from adaptspec.telemetry.live_feed import STRIP_COLUMNS, LiveFeed
from adaptspec.telemetry.requests import ENDED_REQUESTS
from adaptspec.telemetry.speedup import Estimate

TICKS_PER_SECOND = 4.0
BEAT_SECONDS = 5.0
SLOW_SECONDS = 10.0  # a client that reads nothing for so long is disconnected
SPEEDUP_SECONDS = 0.1  # that an answer waits at most for its speed-up; about two milliseconds are usual
MAX_WATCHERS = 32
MAX_WAITING_EVENTS = 24  # of a client; about five seconds of them
_logger = logging.getLogger(__name__)


class Watcher:
    """A client of the feed: its events in order, then None."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._ended = False

    def put(self, event: bytes) -> None:
        """Add an event; a client with too many waiting events is disconnected instead."""
        if self.events.qsize() >= MAX_WAITING_EVENTS:
            self.end()
        elif not self._ended:
            self.events.put_nowait(event)

    def end(self) -> None:
        if not self._ended:
            self._ended = True
            self.events.put_nowait(None)


class LiveFeedHub:
    """Reads the feed for all clients, on the event loop. `facts` are about the server."""

    ticks_per_second, beat_seconds, slow_seconds = TICKS_PER_SECOND, BEAT_SECONDS, SLOW_SECONDS

    def __init__(self, feed: LiveFeed, service: Generation, facts: Mapping[str, Any]) -> None:
        self.feed = feed
        self._service = service
        self._facts = facts
        self._watchers: set[Watcher] = set()
        self._last_event = 0.0
        self._last_state: object = None  # that clients were sent
        # The loop's own threads may all be busy for seconds, with policies that wait for a round or long texts.
        self._thread = ThreadPoolExecutor(1, "adaptspec-live")
        self._failed = False

    @property
    def num_watchers(self) -> int:
        return len(self._watchers)

    async def run(self) -> None:
        """Read for ever. An error in one reading must not end the next."""
        while True:
            await asyncio.sleep(1.0 / self.ticks_per_second)
            self.feed.following = self.num_watchers > 0
            if not self.feed.following:
                continue
            try:
                await self.flush()
                self.tick()
            except Exception:
                _logger.exception("The live feed could not be read; it goes on with the next reading")

    async def flush(self) -> None:
        """Have the feed take in what came so far: milliseconds that the event loop is spared."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self.feed.flush)

    async def with_speedup(self, completion: Completion) -> Completion:
        """A completion with the speed-up of its request, which the page and traces show as well.

        If telemetry fails or takes longer than `SPEEDUP_SECONDS`, the figure is left out; the answer never waits.
        """
        future = asyncio.get_running_loop().run_in_executor(self._thread, self._speedup, completion.request_id)
        await asyncio.wait({future}, timeout=SPEEDUP_SECONDS)
        if not future.done():
            future.cancel()
            return completion
        gain = future.result()
        if gain is None:
            return completion
        return replace(completion, stats=replace(completion.stats, speedup=round(gain.value, 3)))

    def _speedup(self, request_id: str) -> Estimate | None:
        try:
            self.feed.flush_events(SPEEDUP_SECONDS)
            return self.feed.speedup(request_id)
        except Exception:
            if not self._failed:
                self._failed = True
                _logger.exception("The speed-up of an answer could not be estimated; later failures are not logged")
            return None

    def close(self) -> None:
        """End its thread. What still runs there is not waited for."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def tick(self) -> None:
        """Read once, and send all clients what is new."""
        changes, load, now = self.feed.changes(), self._load(), time.time()
        state = load, changes.summary  # without an event, too, the summary changes: seconds go out of it
        if not changes.empty or state != self._last_state:
            self._send("update", {"now": round(now, 3), "load": load, **vars(changes)})
            self._last_event, self._last_state = now, state
        elif now - self._last_event >= self.beat_seconds:
            self._send("beat", {"now": round(now, 3)})
            self._last_event = now

    @contextmanager
    def subscribe(self) -> Iterator[Watcher]:
        """A client of the feed, whose first event is a snapshot. Raises OverloadedError: there are too many clients."""
        if self.num_watchers >= MAX_WATCHERS:
            raise OverloadedError(f"{MAX_WATCHERS} clients watch already; close a page, or poll /live/snapshot")
        watcher = Watcher()
        # Nothing is awaited in here: an event in between would be in neither the snapshot nor the updates. The other
        # clients first get what the snapshot has and they do not.
        with self.feed.lock:
            self.tick()
            self.feed.following = True
            watcher.put(event("snapshot", self.snapshot()))
            self._watchers.add(watcher)
        try:
            yield watcher
        finally:
            self._watchers.discard(watcher)

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
            "reasons": [{"code": r.value, "name": r.label, "words": words} for r, words in REASON_WORDS.items()],
            "columns": {"round": STRIP_COLUMNS},
            "load": self._load(),
            **self.feed.snapshot(),
        }

    def end(self) -> None:
        """End the streams of all clients."""
        for watcher in self._watchers:
            watcher.end()

    def _send(self, name: str, body: Mapping[str, Any]) -> None:
        encoded = event(name, body)
        for watcher in self._watchers:
            watcher.put(encoded)

    def _load(self) -> dict[str, Any]:
        return {"status": self._service.state, **self._service.load}


LIVE = web.AppKey("live", LiveFeedHub)


def add_live(app: web.Application, feed: LiveFeed, facts: Mapping[str, Any]) -> None:
    """Add the routes of a feed; it is read from the app's start to its end."""
    app[LIVE] = LiveFeedHub(feed, app[GENERATION], facts)
    app[GENERATION].with_speedup = app[LIVE].with_speedup
    app.cleanup_ctx.append(_reading)
    app.on_shutdown.append(_end)
    add_operations(app, (snapshot, events, request))


@Operation("get", "/live/snapshot")
async def snapshot(http: web.Request) -> web.Response:
    """What happened lately and happens now.

    Never text of a request.
    """
    await http.app[LIVE].flush()
    return _json(http.app[LIVE].snapshot())


@Operation("get", "/live/requests/{id}", refused=(404,))
async def request(http: web.Request) -> web.Response:
    """One request that runs or ended lately: in a sentence, by phase and by round.

    Never its text.
    """
    hub, name, now = http.app[LIVE], http.match_info["id"], time.time()
    await hub.flush()
    found = hub.feed.request(name, now)
    if found is None:
        message = (
            f"request {quoted(name)} neither runs nor is among the last {ENDED_REQUESTS} that ended; GET "
            "/live/snapshot lists them"
        )
        raise RefusedError(404, "request_not_found", message)
    return _json({"now": round(now, 3), **found})


@Operation("get", "/live/events", streams=True, refused=(429,))
async def events(http: web.Request) -> web.StreamResponse:
    """The snapshot, and what follows as it happens.

    Server-sent events without an end. The first is `snapshot`, the answer of GET /live/snapshot; `update` follows
    where something has happened, with `now`, `load`, `summary`, the `seconds` that changed, requests that `started`
    and `finished`, new `rounds` and figures of `running` requests, by id; `beat`, with `now`, where nothing has.
    """
    hub = http.app[LIVE]
    await hub.flush()
    with hub.subscribe() as watcher:
        response = web.StreamResponse(headers=sse.HEADERS)
        await response.prepare(http)
        try:
            while (waiting := await watcher.events.get()) is not None:
                await asyncio.wait_for(response.write(waiting), hub.slow_seconds)
        except asyncio.TimeoutError:
            if http.transport is not None:
                http.transport.abort()  # the client would not read a farewell either
    return response


def event(name: str, body: Mapping[str, Any]) -> bytes:
    """One event of the feed. Browsers know no NaN in JSON."""
    return sse.event(body, name, allow_nan=False)


def _json(body: Mapping[str, Any]) -> web.Response:
    return web.json_response(body, headers={"Cache-Control": "no-store"})


async def _reading(app: web.Application) -> AsyncGenerator[None, None]:
    task = asyncio.create_task(app[LIVE].run())
    yield
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    app[LIVE].close()


async def _end(app: web.Application) -> None:
    app[LIVE].end()

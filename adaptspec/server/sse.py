"""Server-sent events: JSON objects as an HTTP answer, with errors within it."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from adaptspec.errors import AdaptSpecError
from adaptspec.server.connection import Connection
from adaptspec.server.errors import INTERNAL, HttpError, http_error

# The last keeps nginx from collecting the pieces.
HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
_logger = logging.getLogger(__name__)


class EventStream(web.StreamResponse):
    """An answer whose status goes out first; `broken` is the error that it ended with after that."""

    broken: HttpError | None = None


@dataclass(frozen=True)
class Silence:
    """What a stream sends while it has no event, so that proxies and clients do not take it for dead.

    After `first` seconds it sends its headers and a comment with the `progress`, then a comment after every `every`
    seconds without an event. Clients skip comments. `clock` and `sleep` are in seconds, as those of `asyncio`.
    """

    progress: Callable[[], str]
    first: float = 5.0
    every: float = 15.0
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep


async def respond(
    http: web.Request,
    events: AsyncGenerator[dict[str, Any], None],
    headers: Mapping[str, str],
    silence: Silence | None = None,
    *,
    named: bool = False,
) -> web.StreamResponse:
    """Send the events, then `[DONE]`. `named`: each event has a `type`, which is also its name in the stream.

    Nothing is sent before the first event, unless a `silence` ends, so a request that the engine refuses gets its own
    status. A later error becomes an event with an error object. The events are closed at the end, also when the client
    has left.
    """
    async with aclosing(events), _Stream(http, headers, silence) as stream:
        try:
            async for body in events:
                await stream.write(event(body, str(body["type"]) if named else None))
        except ConnectionError:
            raise  # the client has gone
        except Exception as error:  # noqa: BLE001 - `fail` raises it or logs it
            await stream.fail(error)
        await stream.write(b"data: [DONE]\n\n")
    await stream.response.write_eof()
    return stream.response


def event(body: Mapping[str, Any], name: str | None = None, *, allow_nan: bool = True) -> bytes:
    """One event. Raises ValueError for a number that JSON cannot express, unless `allow_nan`."""
    data = f"data: {json.dumps(body, separators=(',', ':'), allow_nan=allow_nan)}\n\n"
    return (data if name is None else f"event: {name}\n{data}").encode()


class _Stream:
    """An answer that begins with its first write, whichever task writes it. Leaving it ends its tasks."""

    def __init__(self, http: web.Request, headers: Mapping[str, str], silence: Silence | None) -> None:
        self.response = EventStream(headers=HEADERS | dict(headers))
        self._http = http
        self._silence = silence
        self._clock = time.monotonic if silence is None else silence.clock
        self._begun = False  # the headers have been sent
        self._refused = False  # an error came before them
        self._last = self._clock()  # when bytes were sent, or the wait for the first began
        self._lock = asyncio.Lock()  # held while bytes are written, the headers included
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> _Stream:
        if self._silence is not None:
            self._run(self._break_silence(self._silence))
        return self

    async def __aexit__(self, *error: object) -> None:
        if isinstance(self._http.protocol, Connection):
            self._http.protocol.on_half_closed = None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def write(self, data: bytes) -> None:
        """Send bytes, after the headers."""
        async with self._lock:
            await self._send(data)

    async def fail(self, error: Exception) -> None:
        """Send an error as an event. Raises it if no headers have been sent, so that it becomes the status."""
        async with self._lock:
            if not self._begun:
                self._refused = True
                raise error
            if isinstance(error, AdaptSpecError):
                self.response.broken = http_error(error)
            else:
                _logger.error("Failed in the middle of a stream", exc_info=error)
                self.response.broken = INTERNAL
            await self._send(event(self.response.broken.body()))

    async def _send(self, data: bytes) -> None:
        if not self._begun:
            self._begun = True
            await self.response.prepare(self._http)
            if isinstance(self._http.protocol, Connection):
                # Sending shows at once whether the client has gone: its machine refuses the comment.
                self._http.protocol.on_half_closed = lambda: self._run(self._comment("waiting"))
        await self.response.write(data)
        self._last = self._clock()

    async def _break_silence(self, silence: Silence) -> None:
        while not self._refused:
            left = self._last + (silence.every if self._begun else silence.first) - self._clock()
            if left > 0:
                await silence.sleep(left)
            else:
                await self._comment(silence.progress())

    async def _comment(self, text: str) -> None:
        """Send a comment, unless other bytes are sent while it waits."""
        before = self._last
        async with self._lock:
            if self._last == before and not self._refused:
                await self._send(f": {text}\n\n".encode())

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.create_task(work))

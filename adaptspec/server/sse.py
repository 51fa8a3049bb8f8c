"""Server-sent events: JSON objects as an HTTP answer, with errors within it, and at a constant rate where wanted.

How many drafts a round had accepted shows in the size and time of a plain stream's packets, by which whoever watches an
encrypted connection can tell texts apart. With `Padding` each packet holds what is ready, cut at its size, and comments
that clients skip: when the stream began and ended is left to see.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from adaptspec.errors import AdaptSpecError
from adaptspec.server.connection import Connection
from adaptspec.server.http_errors import INTERNAL, HttpError, http_error

# The last keeps nginx from collecting the pieces.
HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
Write = Callable[[bytes], Awaitable[None]]
_LONGEST_QUEUE = 64  # packets that may wait before whoever writes has to
_logger = logging.getLogger(__name__)


class EventStream(web.StreamResponse):
    """An answer whose status goes out first; `broken` is the error that it ended with after that."""

    broken: HttpError | None = None


@dataclass(frozen=True)
class Padding:
    """The shape of a stream of constant rate: `size` bytes every `seconds`."""

    size: int = 4096
    seconds: float = 0.025


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
    headers: dict[str, str],
    padding: Padding | None = None,
    silence: Silence | None = None,
    *,
    named: bool = False,
) -> web.StreamResponse:
    """Send the events, then `[DONE]`. `named`: the events have a `type`, which the stream says as well.

    Nothing is sent before the first event, but for a `silence`, so a request the engine refuses gets a proper status.
    An error after that becomes an event with an error object.
    """
    stream = _Stream(http, headers, padding, time.monotonic if silence is None else silence.clock)
    async with aclosing(events), stream, _breaking(stream, silence):
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


class _Stream:
    """An answer that begins with its first write, whichever task that comes from."""

    def __init__(
        self, http: web.Request, headers: Mapping[str, str], padding: Padding | None, clock: Callable[[], float]
    ) -> None:
        self.response = EventStream(headers=HEADERS | dict(headers))
        self.begun = False
        self.ended = False
        self.last = clock()  # when something was sent, or the wait for it began
        self._clock = clock
        self._http = http
        self._padding = padding
        self._stack = AsyncExitStack()
        self._lock = asyncio.Lock()  # held while something is written, the beginning included
        self._write: Write = self.response.write

    async def __aenter__(self) -> _Stream:
        await self._stack.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._stack.__aexit__(*error)

    async def write(self, data: bytes) -> None:
        """Send bytes, after the headers."""
        async with self._lock:
            await self._send(data)

    async def comment(self, text: str) -> None:
        """Send a comment, unless something else has been sent meanwhile."""
        before = self.last
        async with self._lock:
            if self.last == before and not self.ended:
                await self._send(f": {text}\n\n".encode())

    async def fail(self, error: Exception) -> None:
        """Send an error as an event. Raises it where nothing was sent, so that it gets a status."""
        async with self._lock:
            if not self.begun:
                self.ended = True
                raise error
            if isinstance(error, AdaptSpecError):
                self.response.broken = http_error(error)
            else:
                _logger.error("Failed in the middle of a stream", exc_info=error)
                self.response.broken = INTERNAL
            await self._send(event(self.response.broken.body()))

    def _probe(self) -> None:
        """Send a comment at once: a client that has gone refuses it."""
        task = asyncio.ensure_future(self.comment("waiting"))
        self._stack.callback(task.cancel)

    async def _send(self, data: bytes) -> None:
        if not self.begun:
            self.begun = True
            await self.response.prepare(self._http)
            connection = self._http.protocol
            if isinstance(connection, Connection):
                connection.on_half_closed = self._probe
                self._stack.callback(setattr, connection, "on_half_closed", None)
            self._write = await self._stack.enter_async_context(sending(self.response.write, self._padding))
        await self._write(data)
        self.last = self._clock()


@asynccontextmanager
async def _breaking(stream: _Stream, silence: Silence | None) -> AsyncGenerator[None, None]:
    """Meanwhile comments break the silence of a stream."""
    if silence is None:
        yield
        return
    commenting = asyncio.ensure_future(_comment(stream, silence))
    try:
        yield
    finally:
        commenting.cancel()
        await asyncio.gather(commenting, return_exceptions=True)


async def _comment(stream: _Stream, silence: Silence) -> None:
    while not stream.ended:
        left = stream.last + (silence.every if stream.begun else silence.first) - silence.clock()
        if left > 0:
            await silence.sleep(left)
        else:
            await stream.comment(silence.progress())


def event(body: Mapping[str, Any], name: str | None = None, *, allow_nan: bool = True) -> bytes:
    """One event. Raises ValueError for a number that JSON has no word for, unless `allow_nan`."""
    data = f"data: {json.dumps(body, separators=(',', ':'), allow_nan=allow_nan)}\n\n"
    return (data if name is None else f"event: {name}\n{data}").encode()


@asynccontextmanager
async def sending(write: Write, padding: Padding | None) -> AsyncGenerator[Write, None]:
    """What to write server-sent events with: `write` itself, or packets of one size and pace.

    Leaving it normally waits until everything is sent; leaving it with an error sends nothing more.
    """
    if padding is None:
        yield write
        return
    paced = _Paced(write, padding)
    try:
        yield paced.write
        paced.ended = True
        await paced.ticking
    finally:
        paced.ticking.cancel()
        await asyncio.gather(paced.ticking, return_exceptions=True)


class _Paced:
    def __init__(self, write: Write, padding: Padding) -> None:
        self._write = write
        self._padding = padding
        self._queue = bytearray()
        self._room = asyncio.Event()
        self._room.set()
        self.ended = False
        self.ticking = asyncio.ensure_future(self._run())

    async def write(self, data: bytes) -> None:
        """Take bytes in; waits while too many have not been sent. Raises what sending them raised."""
        await self._room.wait()
        if self.ticking.done():
            await self.ticking
        self._queue += data
        if len(self._queue) > _LONGEST_QUEUE * self._padding.size:
            self._room.clear()

    async def _run(self) -> None:
        """Send a packet at each tick until all is said. A tick that comes late moves those after it."""
        loop = asyncio.get_running_loop()
        try:
            while self._queue or not self.ended:
                due = loop.time() + self._padding.seconds
                await self._write(self._packet())
                await asyncio.sleep(due - loop.time())
        finally:
            self._room.set()  # nobody waits for a client that has gone

    def _packet(self) -> bytes:
        size = self._padding.size
        packet = bytes(self._queue[:size])
        del self._queue[:size]
        if len(self._queue) <= size:
            self._room.set()
        return packet + filler(size - len(packet))


def filler(size: int) -> bytes:
    """So many bytes between events that mean nothing: a comment, or empty lines where there is no room for one."""
    return b":" + b" " * (size - 3) + b"\n\n" if size >= 3 else b"\n" * size

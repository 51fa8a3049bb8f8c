"""Server-sent events: JSON objects as an HTTP answer, with errors within it, and at a constant rate where wanted.

How many drafts a round had accepted shows in the size and time of a plain stream's packets, by which whoever watches an
encrypted connection can tell texts apart. With `Padding` each packet holds what is ready, cut at its size, and comments
that clients skip: when the stream began and ended is left to see.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from adaptspec.errors import AdaptSpecError
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


async def respond(
    http: web.Request,
    events: AsyncGenerator[dict[str, Any], None],
    headers: dict[str, str],
    padding: Padding | None = None,
    *,
    named: bool = False,
) -> web.StreamResponse:
    """Send the events, then `[DONE]`. `named`: the events have a `type`, which the stream says as well.

    Nothing is sent before the first event, so a request the engine refuses gets a proper status. An error after that
    becomes an event with an error object.
    """
    response = EventStream(headers=HEADERS | headers)
    async with aclosing(events):
        body = await anext(events)
        await response.prepare(http)
        async with sending(response.write, padding) as write:
            try:
                await write(event(body, str(body["type"]) if named else None))
                async for body in events:
                    await write(event(body, str(body["type"]) if named else None))
            except ConnectionError:
                raise  # the client has gone: nobody to tell
            except Exception as error:
                if isinstance(error, AdaptSpecError):
                    response.broken = http_error(error)
                else:
                    _logger.exception("Failed in the middle of a stream")
                    response.broken = INTERNAL
                await write(event(response.broken.body()))
            await write(b"data: [DONE]\n\n")
    await response.write_eof()
    return response


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

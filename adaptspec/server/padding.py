"""A stream of constant rate: packets of one size at fixed times, whatever there is to say.

Speculation shows in the packets of a plain stream: a round that had many drafts accepted sends more at once, and sooner
after the last. Whoever watches an encrypted connection can tell texts apart by that. Here each packet holds what
is ready, cut at the packet's size, and comments that clients skip. What is left to see is when the stream began and
ended. Knows bytes and time; neither requests nor speculation.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

Write = Callable[[bytes], Awaitable[None]]

_LONGEST_QUEUE = 64  # packets that may wait before whoever writes has to


@dataclass(frozen=True)
class Padding:
    """The shape of a stream: `size` bytes every `seconds`."""

    size: int = 4096
    seconds: float = 0.025


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

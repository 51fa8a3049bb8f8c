"""Work that would hold up the event loop: in threads, one piece of each order of size at a time.

So nobody waits for work that takes much longer than his own. Knows nothing of the work.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Turns:
    """Whose turn it is, in the order in which they came."""

    def __init__(self, small: int) -> None:
        """`small`: work up to this size is done at once, where it is asked for; a thread would be no faster."""
        self._small = small
        self._lanes: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)

    def lane(self, size: int) -> asyncio.Lock:
        """What work of about this size has to hold: up to four times as long is about the same."""
        return self._lanes[size.bit_length() // 2]

    async def run(self, size: int, work: Callable[[], T]) -> T:
        """What `work`, of such a size, returns or raises.

        It goes on where its caller is cancelled, and nothing of its size begins before its end: clients that come and
        go must not fill all threads.
        """
        if size <= self._small:
            return work()
        lane = self.lane(size)
        await lane.acquire()
        running = asyncio.get_running_loop().run_in_executor(None, work)
        running.add_done_callback(lambda _: lane.release())
        return await asyncio.shield(running)

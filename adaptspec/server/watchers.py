"""Those who watch the live feed: each gets the same events, once encoded; who cannot keep up is let go.

Knows queues of bytes; it does not know HTTP, nor what an event says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from adaptspec.errors import OverloadedError

MOST_WATCHERS = 32
WAITING_EVENTS = 24  # about five seconds of them


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
        """Nothing more will come."""
        if not self.gone:
            self.gone = True
            self.events.put_nowait(None)


class Watchers:
    """All of them, from one event loop. There are at most `MOST_WATCHERS`."""

    def __init__(self) -> None:
        self._all: set[Watcher] = set()

    def __len__(self) -> int:
        return len(self._all)

    def check_room(self) -> None:
        """Raise OverloadedError if there are as many as there may be."""
        if len(self._all) >= MOST_WATCHERS:
            raise OverloadedError(f"{MOST_WATCHERS} clients watch already; close a page, or poll /live/snapshot")

    @contextmanager
    def one_more(self) -> Iterator[Watcher]:
        """A watcher for as long as the context lasts. Raises as `check_room` does."""
        self.check_room()
        watcher = Watcher()
        self._all.add(watcher)
        try:
            yield watcher
        finally:
            self._all.discard(watcher)

    def tell(self, event: bytes) -> None:
        """Send an event to all of them."""
        for watcher in self._all:
            watcher.put(event)

    def end(self) -> None:
        """Send them home."""
        for watcher in self._all:
            watcher.end()

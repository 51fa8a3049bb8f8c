"""A bounded queue with a thread that empties it: whoever puts something in never waits for what becomes of it."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

_log = logging.getLogger(__name__)
T = TypeVar("T")


class BoundedQueue(Generic[T]):
    """`put` costs a fraction of a microsecond on any thread; what does not fit is counted and left out.

    `handle` gets what has come, in order, never on two threads at once. What it raises is logged; its batch is lost.
    """

    def __init__(
        self,
        name: str,
        handle: Callable[[Sequence[T]], None],
        *,
        limit: int = 20_000,
        pause: float = 0.25,
        enough: int | None = None,
    ) -> None:
        """`limit`: the most it holds. `pause`: seconds between two batches; `enough`: so many are one at once."""
        self._handle = handle
        self._limit = limit
        self._pause = pause
        self._enough = enough
        self._waiting: deque[T] = deque()
        self._working = threading.Lock()
        self._closing = threading.Event()
        self._due = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"adaptspec-{name}", daemon=True)
        self.dropped = 0  # written by the putting thread, and by `work` where it failed

    @property
    def closing(self) -> bool:
        return self._closing.is_set()

    def start(self) -> None:
        """Begin to empty it; what was put in before is kept for then."""
        self._thread.start()

    def put(self, item: T, reserve: int = 0) -> bool:
        """Hand something over; False if it was dropped. So much of the room as `reserve` is left to others."""
        waiting = len(self._waiting)
        if waiting >= self._limit - reserve:
            self.dropped += 1
            return False
        self._waiting.append(item)
        if self._enough is not None and waiting + 1 >= self._enough:
            self._due.set()
        return True

    def work(self, wait: float = -1) -> None:
        """Handle what has come so far, here and now; give up after so many seconds if another thread is at it."""
        if not self._working.acquire(timeout=wait):
            return
        try:
            batch = [self._waiting.popleft() for _ in range(len(self._waiting))]
            if batch:
                self._handle(batch)
        except Exception:  # noqa: BLE001 - whoever watches must never end because of one batch
            self.dropped += len(batch)
            _log.exception("%d entries of %s are lost", len(batch), self._thread.name)
        finally:
            self._working.release()

    def close(self, seconds: float | None = None) -> None:
        """Handle what is left, and end; give up on it after so many `seconds`."""
        self._closing.set()
        self._due.set()
        if self._thread.is_alive():
            self._thread.join(seconds)
        else:
            self.work()

    def _run(self) -> None:
        while not self._closing.is_set():
            self._due.wait(self._pause)
            self._due.clear()
            self.work()
        self.work()

"""A bounded queue with a thread that empties it: how sinks do their work without the engine waiting for it.

Knows nothing of what is put in.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

_log = logging.getLogger(__name__)
T = TypeVar("T")


class Mailbox(Generic[T]):
    """`put` costs a fraction of a microsecond on any thread; what does not fit is counted and left out.

    `handle` gets what has come, in order, never on two threads at once. What it raises is logged; its lot is lost.
    """

    def __init__(
        self,
        name: str,
        handle: Callable[[Sequence[T]], None],
        *,
        waiting: int = 20_000,
        pause: float = 0.25,
        enough: int | None = None,
    ) -> None:
        """`waiting`: the most it holds. `pause`: seconds between two lots; `enough`: so many are a lot at once."""
        self._handle = handle
        self._waiting = waiting
        self._pause = pause
        self._enough = enough
        self._queue: deque[T] = deque()
        self._working = threading.Lock()
        self._closing = threading.Event()
        self._due = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"adaptspec-{name}", daemon=True)
        self.dropped = 0  # written by the putting thread, and by `work` where it failed

    @property
    def closing(self) -> bool:
        """Whether what is handled now is the last."""
        return self._closing.is_set()

    def start(self) -> None:
        """Begin to empty it; what was put in before is kept for then."""
        self._thread.start()

    def put(self, item: T) -> None:
        """Hand something over."""
        waiting = len(self._queue)
        if waiting < self._waiting:
            self._queue.append(item)
        else:
            self.dropped += 1
        if self._enough is not None and waiting + 1 >= self._enough and not self._due.is_set():
            self._due.set()

    def work(self) -> None:
        """Handle what has come so far, here and now."""
        with self._working:
            lot = [self._queue.popleft() for _ in range(len(self._queue))]
            if not lot:
                return
            try:
                self._handle(lot)
            except Exception:  # noqa: BLE001 - whoever watches must never end because of one lot
                self.dropped += len(lot)
                _log.exception("%d entries of %s are lost", len(lot), self._thread.name)

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

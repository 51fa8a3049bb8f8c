"""The queue: in order, bounded, and it outlives what its owner does wrong."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from adaptspec.telemetry.bounded_queue import BoundedQueue


def test_a_full_batch_does_not_wait_for_the_pause() -> None:
    """Else a burst would be lost where the pause is long and the queue short."""
    handled = threading.Event()
    queue: BoundedQueue[int] = BoundedQueue("test", lambda _: handled.set(), limit=10, pause=60.0, enough=3)
    queue.start()
    queue.put(1)
    queue.put(2)
    assert not handled.wait(0.05)
    queue.put(3)
    assert handled.wait(10.0)
    queue.close(5.0)


def test_closing_does_not_wait_for_ever() -> None:
    """Whoever hangs is left behind after the time it was given."""
    began, stuck, ended = threading.Event(), threading.Event(), threading.Event()

    def handle(_: Sequence[int]) -> None:
        began.set()
        stuck.wait()
        ended.set()

    queue: BoundedQueue[int] = BoundedQueue("test", handle, pause=0.001)
    queue.start()
    queue.put(1)
    assert began.wait(10.0)
    closing = threading.Thread(target=queue.close, args=(0.05,), daemon=True)
    closing.start()
    try:
        closing.join(10.0)
        assert not closing.is_alive(), "it waits for the batch, which nobody lets go on"
    finally:
        stuck.set()
    queue.close(10.0)
    assert ended.is_set(), "what it has time for is waited for"

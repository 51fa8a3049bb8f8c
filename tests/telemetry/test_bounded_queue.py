"""The mailbox: in order, bounded, and it outlives what its owner does wrong."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from adaptspec.telemetry.bounded_queue import Mailbox


def test_what_is_put_in_is_handled_in_order_on_another_thread() -> None:
    """The engine thread does none of the work."""
    seen: list[tuple[int, int]] = []
    box: Mailbox[int] = Mailbox("test", lambda lot: seen.extend((n, threading.get_ident()) for n in lot), pause=0.001)
    box.put(0)
    box.start()
    for number in range(1, 500):
        box.put(number)
    box.close()
    assert [number for number, _ in seen] == list(range(500))
    assert threading.get_ident() not in {thread for _, thread in seen}


def test_what_does_not_fit_is_counted() -> None:
    """Memory stays bounded however slow the handling is."""
    seen: list[int] = []
    box: Mailbox[int] = Mailbox("test", seen.extend, waiting=3, pause=60.0)
    for number in range(10):
        box.put(number)
    assert box.dropped == 7
    box.work()
    assert seen == [0, 1, 2]


def test_a_full_lot_does_not_wait_for_the_pause() -> None:
    """Else a burst would be lost where the pause is long and the queue short."""
    handled = threading.Event()
    box: Mailbox[int] = Mailbox("test", lambda _: handled.set(), waiting=10, pause=60.0, enough=3)
    box.start()
    box.put(1)
    box.put(2)
    assert not handled.wait(0.05)
    box.put(3)
    assert handled.wait(10.0)
    box.close(5.0)


def test_a_lot_that_fails_is_lost_and_told(caplog: Any) -> None:
    """The next one is handled."""
    seen: list[int] = []

    def handle(lot: Sequence[int]) -> None:
        if 1 in lot:
            raise ValueError("no ones")
        seen.extend(lot)

    box: Mailbox[int] = Mailbox("test", handle)
    box.put(1)
    box.work()
    box.put(2)
    box.work()
    assert (seen, box.dropped) == ([2], 1)
    assert "no ones" in caplog.text


def test_closing_does_not_wait_for_ever() -> None:
    """Whoever hangs is left behind after the time it was given."""
    began, stuck, ended = threading.Event(), threading.Event(), threading.Event()

    def handle(_: Sequence[int]) -> None:
        began.set()
        stuck.wait()
        ended.set()

    box: Mailbox[int] = Mailbox("test", handle, pause=0.001)
    box.start()
    box.put(1)
    assert began.wait(10.0)
    closing = threading.Thread(target=box.close, args=(0.05,), daemon=True)
    closing.start()
    try:
        closing.join(10.0)
        assert not closing.is_alive(), "it waits for the lot, which nobody lets go on"
    finally:
        stuck.set()
    box.close(10.0)
    assert ended.is_set(), "what it has time for is waited for"

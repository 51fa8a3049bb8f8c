"""Small work is done at once, large work in threads, and no work waits for much larger work."""

from __future__ import annotations

import asyncio
import threading

import pytest

from adaptspec.server.threads import INLINE, MAX_WAIT, SizeClassExecutor, run_with_timeout


async def test_a_cancelled_caller_keeps_its_slot_until_its_work_has_ended() -> None:
    """Otherwise clients that come and go would have as many threads at work as there are."""
    turns, going, begun = SizeClassExecutor(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        assert going.wait(20.0)

    left = asyncio.create_task(turns.run(INLINE + 1, work))
    await asyncio.to_thread(begun.wait, 20.0)
    left.cancel()
    with pytest.raises(asyncio.CancelledError):
        await left
    done: list[int] = []
    after = asyncio.create_task(turns.run(INLINE + 1, lambda: done.append(1)))
    await turns.run(100 * INLINE, lambda: done.append(2))  # work of another size does not wait
    await asyncio.sleep(0.02)
    assert done == [2]
    going.set()
    await asyncio.wait_for(after, 20.0)
    assert done == [2, 1]


async def test_work_on_a_full_machine_may_take_longer_on_the_clock() -> None:
    """Its thread has got no processor when the time is up: that is no fault of the work."""
    going, looks = threading.Event(), 0

    def meter() -> float:
        nonlocal looks
        looks += 1
        if looks == 2:
            going.set()
        return 0.0

    assert await run_with_timeout(0.5, lambda: going.wait(20.0), lambda: meter)
    assert looks >= 2


async def test_work_that_computes_for_too_long_is_interrupted() -> None:
    """By its own processor time, whatever else the machine does."""
    begun, ended = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        try:
            while True:
                pass
        finally:
            ended.set()

    with pytest.raises(asyncio.TimeoutError):
        await run_with_timeout(0.05, work)
    assert begun.is_set()
    assert await asyncio.to_thread(ended.wait, 20.0)


async def test_work_that_waits_for_ever_ends_too() -> None:
    """It uses no processor; a multiple of its time on the clock is the most."""
    going, looks = threading.Event(), 0

    def meter() -> float:
        nonlocal looks
        looks += 1
        return 0.0

    with pytest.raises(asyncio.TimeoutError):
        await run_with_timeout(0.05, lambda: going.wait(60.0), lambda: meter)
    assert 1 <= looks <= MAX_WAIT
    going.set()

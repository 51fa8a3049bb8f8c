"""Work that would hold up the event loop, in threads: by order of size, or with an end to its time."""

from __future__ import annotations

import asyncio
import ctypes
import threading
from collections import defaultdict
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Lanes:
    """One piece of work of each order of size at a time, so nobody waits for what takes much longer than his own."""

    def __init__(self, small: int) -> None:
        """`small`: work up to this size is done at once, where it is asked for; a thread would be no faster."""
        self._small = small
        self._lanes: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)

    def lane(self, size: int) -> asyncio.Lock:
        """What work of about this size has to hold: up to four times as long is about the same."""
        return self._lanes[size.bit_length() // 2]

    async def run(self, size: int, work: Callable[[], T]) -> T:
        """What `work`, of such a size, returns or raises. It goes on where its caller is cancelled.

        Nothing of its size begins before its end: clients that come and go must not fill all threads.
        """
        if size <= self._small:
            return work()
        lane = self.lane(size)
        await lane.acquire()
        running = asyncio.get_running_loop().run_in_executor(None, work)
        running.add_done_callback(lambda _: lane.release())
        return await asyncio.shield(running)


async def within(seconds: float, work: Callable[[], T]) -> T:
    """What `work` returns or raises, in a thread of its own; asyncio.TimeoutError if it takes longer.

    The thread is then interrupted between two steps of Python, so a loop ends; one long call into C ends by itself.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def tell(result: T | None, error: Exception | None) -> None:
        if not future.done():
            future.set_result(result) if error is None else future.set_exception(error)  # type: ignore[arg-type]

    def run() -> None:
        try:
            result, error = work(), None
        except _InterruptedError:
            return
        except Exception as caught:  # noqa: BLE001 - it is the caller's
            result, error = None, caught
        loop.call_soon_threadsafe(tell, result, error)

    thread = threading.Thread(target=run, name="adaptspec-timed", daemon=True)
    thread.start()
    try:
        await asyncio.wait([future], timeout=seconds)  # wait_for may forget to be cancelled before Python 3.12
        if not future.done():
            raise asyncio.TimeoutError
        return future.result()
    finally:
        if not future.done():
            future.cancel()
            _interrupt(thread)


class _InterruptedError(BaseException):
    """Raised in the thread whose time is up: nothing that catches Exception can hold it."""


def _interrupt(thread: threading.Thread) -> None:
    if thread.ident is not None and thread.is_alive():
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(_InterruptedError))

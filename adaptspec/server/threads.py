"""Work that would hold up the event loop, in threads: by order of size, or with an end to its time."""

from __future__ import annotations

import asyncio
import ctypes
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import TypeVar

from aiohttp import web

T = TypeVar("T")
Meter = Callable[[], float]
INLINE = 2**16  # bytes of JSON that are read at once: a thread would be no faster, and no stream is delayed by it
# Seconds on the clock for each processor second of `run_with_timeout`: a full machine gives a thread a small share, and
# work that waits for ever uses no processor at all.
MAX_WAIT = 10.0
_MIN_WAIT = 0.01  # seconds between two looks at the processor time of a thread


class SizeClassExecutor:
    """Runs one piece of work of each order of size at a time, so that small work never waits for large work.

    Sizes are in bytes of JSON that take as long to read.
    """

    def __init__(self) -> None:
        self._lanes: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)

    def lane(self, size: int) -> asyncio.Lock:
        """The lock of work of about this size: up to four times as long is about the same."""
        return self._lanes[size.bit_length() // 2]

    async def run(self, size: int, work: Callable[[], T]) -> T:
        """The result of `work`, which goes on where its caller is cancelled.

        No work of its size begins before its end: clients that come and go must not fill all threads.
        """
        if size <= INLINE:
            return work()
        lane = self.lane(size)
        await lane.acquire()
        running = asyncio.get_running_loop().run_in_executor(None, work)
        running.add_done_callback(lambda _: lane.release())
        return await asyncio.shield(running)

    async def run_timed(self, size: int, seconds: float, work: Callable[[], T]) -> T:
        """The same with a limit: asyncio.TimeoutError where it takes more processor time (see `run_with_timeout`)."""
        async with self.lane(size):
            return await run_with_timeout(seconds, work)


THREADS = web.AppKey("threads", SizeClassExecutor)


def thread_meter() -> Meter:
    """A function that returns the processor seconds which the calling thread uses from now on. Any thread may call it.

    It raises OSError once the thread has ended. Where the system has no such clock, all time counts.
    """
    if not hasattr(time, "pthread_getcpuclockid"):
        began = time.monotonic()
        return lambda: time.monotonic() - began
    clock = time.pthread_getcpuclockid(threading.get_ident())
    used = time.clock_gettime(clock)
    return lambda: time.clock_gettime(clock) - used


async def run_with_timeout(seconds: float, work: Callable[[], T], meter: Callable[[], Meter] = thread_meter) -> T:
    """The result of `work`, in a thread of its own; asyncio.TimeoutError if it takes longer.

    `seconds` are processor time, since a full machine must not make work fail; ten times as many may pass on the clock.
    The thread is then interrupted between two steps of Python, so a loop ends; one long call into C ends by itself.
    `meter` is called in the thread (see `thread_meter`).
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    meters: list[Meter] = []  # of the thread, as soon as it runs

    def report(result: T | None, error: Exception | None) -> None:
        if not future.done():
            future.set_result(result) if error is None else future.set_exception(error)  # type: ignore[arg-type]

    def run() -> None:
        try:
            meters.append(meter())
            result, error = work(), None
        except _InterruptedError:
            return
        except Exception as caught:  # noqa: BLE001 - the caller gets it
            result, error = None, caught
        loop.call_soon_threadsafe(report, result, error)

    thread = threading.Thread(target=run, name="adaptspec-timed", daemon=True)
    thread.start()
    try:
        ends, left = loop.time() + MAX_WAIT * seconds, seconds
        while not future.done() and left > 0.0 and loop.time() < ends:
            # Not wait_for: it may forget to be cancelled before Python 3.12.
            await asyncio.wait([future], timeout=max(left, _MIN_WAIT))
            left = seconds - _used(meters)
        if not future.done():
            raise asyncio.TimeoutError
        return future.result()
    finally:
        if not future.done():
            future.cancel()
            _interrupt(thread)


def _used(meters: list[Meter]) -> float:
    """Seconds by the meter of a thread; 0 if it has not begun, or if it has ended and its result is on the way."""
    try:
        return meters[0]() if meters else 0.0
    except OSError:
        return 0.0


class _InterruptedError(BaseException):
    """Raised in the thread whose time is up; code that catches Exception does not catch it."""


def _interrupt(thread: threading.Thread) -> None:
    if thread.ident is not None and thread.is_alive():
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(_InterruptedError))

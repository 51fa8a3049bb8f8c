"""Work that gets only so long: it runs in a thread of its own, and is interrupted there when its time is up.

Knows threads; nothing of the work.
"""

from __future__ import annotations

import asyncio
import ctypes
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def within(seconds: float, work: Callable[[], T]) -> T:
    """What `work` returns or raises; asyncio.TimeoutError if it takes longer.

    The thread is interrupted between two steps of Python, so a loop ends; one long call into C ends by itself.
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

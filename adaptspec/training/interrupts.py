"""Keeping Ctrl-C waiting while something must not be left half done.

Knows nothing of what that is. Only the main thread gets Ctrl-C in Python; elsewhere there is nothing to do.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def held_back() -> Iterator[None]:
    """Let a Ctrl-C that comes inside the block take effect at its end."""
    usual = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(usual):
        yield
        return
    arrived: list[FrameType | None] = []
    signal.signal(signal.SIGINT, lambda _number, frame: arrived.append(frame))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
    if arrived:
        usual(signal.SIGINT, arrived[0])

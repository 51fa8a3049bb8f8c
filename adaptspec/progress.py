"""Progress reports of a long computation to the thread that runs it.

The engine thread registers a callback; models, samplers and drafters report from inside a round, at any depth of calls.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar


def _ignore() -> None:
    """The callback of a thread that registered none."""


# A context variable, as each thread has its own context: two engines in one process do not report for each other.
_callback: ContextVar[Callable[[], None]] = ContextVar("adaptspec_progress", default=_ignore)


def set_progress_callback(callback: Callable[[], None]) -> None:
    """Have `report_progress` on this thread call `callback`, which must be quick and must not raise."""
    _callback.set(callback)


def report_progress() -> None:
    """Report that the computation on this thread has advanced. Costs about 0.1 microseconds.

    Call it before every step that can take long by itself: a layer of a forward pass, a draft step, a grammar mask.
    """
    _callback.get()()

"""Curves over a journal's rounds: tokens per second, acceptance length and batch size, as counter events.

Knows sums over short windows of rounds; it does not know where a journal comes from.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from adaptspec.telemetry.trace_events import Event, counter_event
from adaptspec.types import RoundRecord

WINDOW = 50_000_000  # nanoseconds: some tens of rounds of a small model, and no more than 20 values a second

# What the values are: viewers show it behind the name.
_UNITS = {"tokens per second": "output", "acceptance length": "tokens", "batch": "requests"}


class Curves:
    """Sums rounds up in windows of `WINDOW` or more, whole rounds each; a pause ends a window and is one of its own.

    Tokens per second x length of a window, summed over all of them, is therefore the number of tokens emitted.
    Acceptance length is 1 + accepted per draft, as everywhere, and has no value where nothing was drafted.
    """

    def __init__(self, process: int) -> None:
        self._process = process
        self._start: int | None = None
        self._end = 0
        self._emitted = self._accepted = self._drafts = 0
        self._batch: int | None = None

    def add(self, record: RoundRecord, start: int, length: int) -> Iterator[Event]:
        """Take in a round that began at `start`; yields what has come to an end with it."""
        if self._start is not None and start - self._end > WINDOW:
            yield from self._close()
            yield self._event("tokens per second", self._end, 0.0)
        if self._start is None:
            self._start = start
        self._end = start + length
        self._emitted += int(record.emitted.sum())
        self._accepted += int(np.minimum(record.accepted, record.emitted).sum())
        self._drafts += int((record.drafted > 0).sum())
        if len(record.rows) != self._batch:
            self._batch = len(record.rows)
            yield self._event("batch", start, self._batch)
        if self._end - self._start >= WINDOW:
            yield from self._close()
            self._start = self._end

    def end(self) -> Iterator[Event]:
        """What remains; the curves fall to nothing."""
        yield from self._close()
        if self._batch is not None:
            yield self._event("tokens per second", self._end, 0.0)
            yield self._event("batch", self._end, 0)

    def _close(self) -> Iterator[Event]:
        if self._start is not None and self._end > self._start:
            rate = self._emitted / ((self._end - self._start) / 1e9)
            yield self._event("tokens per second", self._start, rate)
            if self._drafts:
                yield self._event("acceptance length", self._start, 1.0 + self._accepted / self._drafts)
        self._start = None
        self._emitted = self._accepted = self._drafts = 0

    def _event(self, name: str, at: int, value: float) -> Event:
        return counter_event(self._process, name, _UNITS[name], at, value)

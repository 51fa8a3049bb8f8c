"""A round on its way: what it was launched with, what it has come to, and how long its parts took."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from adaptspec.control.policy import BatchSignals, Decision
from adaptspec.engine.executor import Pending
from adaptspec.engine.scheduler import Batch
from adaptspec.models.draft import Draft
from adaptspec.types import IntArray
from adaptspec.verification.method import VerifyResult


class Flight(NamedTuple):
    """A round that runs."""

    batch: Batch
    signals: BatchSignals
    decision: Decision
    pending: Pending
    clock: Clock


class Landed(NamedTuple):
    """A round whose tokens are there, but not its text.

    `taken`: those of the emitting whose tokens were appended; `there`: the decoding rows whose request was still there
    at its end (None: all); `shadows`: see `Executor.shadows`; `seconds` of drafting and verifying.
    """

    flight: Flight
    draft: Draft
    verdict: VerifyResult
    taken: list[int]
    there: IntArray | None
    shadows: tuple[IntArray, IntArray] | None
    seconds: tuple[float, float]


class Clock:
    """Splits a round's time into named laps, in seconds."""

    def __init__(self, timer: Callable[[], float]) -> None:
        self._timer = timer
        self._start = self._last = timer()
        self._laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        now = self._timer()
        self._laps[name] = now - self._last
        self._last = now

    def seconds(self, name: str) -> float:
        return self._laps[name]

    @property
    def total(self) -> float:
        return self._last - self._start

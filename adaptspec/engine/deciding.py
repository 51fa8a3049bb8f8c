"""Asks the controller what the rows of a round may draft. Where nobody drafts, one decision serves several rounds."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from adaptspec.control.controller import Controller
from adaptspec.control.own_time import OwnTime
from adaptspec.control.policy import BatchSignals, Decision
from adaptspec.control.rows import some
from adaptspec.engine.executor import Executor
from adaptspec.engine.scheduler import Batch
from adaptspec.engine.sequence import Sequence as Seq
from adaptspec.types import Reason, RoundRecord, nobody

_log = logging.getLogger(__name__)
COMPLAIN_EVERY = 1000  # failures; some thousand rounds fit into a second


class Decided(NamedTuple):
    """What a round is run by. `kept`: it goes on with the decision of an earlier one, and teaches nothing."""

    signals: BatchSignals
    decision: Decision
    kept: bool = False


class _Last(NamedTuple):
    """The last decision, and what it was for."""

    of: Decided
    decoding: Sequence[Seq]
    policies: object
    off: bool  # nobody drafts


class Deciding:
    """The controller's decisions for an executor's rounds, timed by `timer`.

    A small model runs a plain round in a millisecond, of which deciding and learning would take a twentieth. So where
    nobody drafts, no policy goes by what n-gram drafters may find at any time, and none only watches, the same rows go
    on undecided for as many rounds as make it little (see `OwnTime`); the next that is learned from stands for them.
    """

    def __init__(self, controller: Controller, executor: Executor, timer: Callable[[], float]) -> None:
        self._controller, self._executor, self._timer = controller, executor, timer
        self._own = OwnTime()
        self._last: _Last | None = None
        self._left = 0  # rounds that the last decision may yet serve
        self._unheard = 0  # rounds since the last that was learned from
        self._failures = 0

    def of(self, batch: Batch) -> Decided:
        """Signals and decision of a round."""
        last, self._left = self._last, self._left - 1
        if last is not None and self._left >= 0 and self._goes_on(last, batch):
            signals = replace(last.of.signals, context=np.array([s.length for s in batch.decoding], dtype=np.int64))
            return Decided(signals, last.of.decision, kept=True)
        begun, failures = self._timer(), self._failures
        signals = self._signals(batch)
        made = Decided(signals, self._decision(signals))
        self._own.note("decide", self._timer() - begun)
        off, was_off = not some(made.decision.depths), last is not None and last.off
        self._last = _Last(made, batch.decoding, self._controller.policies, off)
        # A single plain round, such as a guard asks for, is no reason for another.
        lasts = bool(batch.decoding) and off and was_off and self._failures == failures
        self._left = self._own.steps - 1 if lasts else 0
        return made

    def forget(self, row: int) -> None:
        """The request in a row has ended. An idle engine would keep its prompt and grammar until the next round."""
        if self._last is not None and row in self._last.of.signals.rows:
            self._last = self._last._replace(decoding=())

    def learn(self, record: RoundRecord, kept: bool) -> None:
        """A round has ended; see `Decided.kept`."""
        self._own.note("step", record.total_seconds)
        if kept:
            self._unheard += 1
            return
        begun = self._timer()
        if self._unheard and len(record.rows):
            record, self._unheard = replace(record, stands_for=1 + self._unheard), 0
        self._controller.learn(record)
        self._own.note("learn", self._timer() - begun)

    def _goes_on(self, last: _Last, batch: Batch) -> bool:
        return (
            not batch.chunks
            and batch.decoding == last.decoding
            and self._controller.policies is last.policies
            and not self._controller.searches
        )

    def _signals(self, batch: Batch) -> BatchSignals:
        size, executor = len(batch.decoding), self._executor
        gaps = executor.cache_gaps(batch)
        offers = executor.offers(batch, self._controller.search_depth, self._controller.asked)
        table = [
            [s.length for s in batch.decoding],
            batch.limits,
            [s.emitted for s in batch.decoding],
            *gaps,
            *offers.found,
        ]
        # One array cut in rows: at batch 1 making it costs as much as what stands in it.
        signals, drafters = np.array(table, dtype=np.int64), len(executor.drafters)
        return BatchSignals(
            rows=batch.rows[:size],
            tasks=nobody(),
            context=signals[0],
            limits=signals[1],
            position=signals[2],
            cache_gap=signals[3 : 3 + drafters],
            found=signals[3 + drafters :],
            prefill_tokens=batch.prefill_tokens,
            stated=offers.stated,
        )

    def _decision(self, signals: BatchSignals) -> Decision:
        """The controller's. A policy that fails costs its drafts: plain decoding needs no decision."""
        try:
            return self._controller.decide(signals)
        except Exception:  # noqa: BLE001
            self._failures += 1
            if self._failures % COMPLAIN_EVERY == 1:
                _log.exception("a round could not be decided, for the %d. time; it has no drafts", self._failures)
            nothing = np.zeros(signals.batch_size, dtype=np.int64)
            return Decision(nothing, nothing + int(Reason.GUARD), nothing)

"""A policy put together from its parts: chooser, stop rule, guards, per-task stops."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from adaptspec.control.arrays import some
from adaptspec.control.choosers.chooser import Choice, Chooser
from adaptspec.control.guards import Dwell, Stance, SwitchGuard
from adaptspec.control.policy import BatchSignals, Decision, RoundStop
from adaptspec.control.stopping import NoStop, StopRule, stop_by_task
from adaptspec.types import IntArray, Reason, RoundRecord


class ComposedPolicy:
    """Chooser -> dwell -> guards -> stop rule. Implements `Policy`."""

    def __init__(
        self,
        chooser: Chooser,
        drafters: tuple[str, ...],
        max_rows: int,
        *,
        stop: StopRule | None = None,
        guard: SwitchGuard | None = None,
        dwell: Dwell | None = None,
        max_batch_size: int | None = None,
        task_stops: Mapping[int, StopRule] | None = None,
    ) -> None:
        self._chooser = chooser
        self._drafters = drafters
        self._stop = stop or NoStop()
        self._guard = guard
        self._dwell = dwell
        self._max_batch_size = max_batch_size
        self._task_stops = dict(task_stops or {})
        self._tasks: IntArray = np.zeros(max_rows, dtype=np.int64)
        self._zeros: IntArray = np.zeros(0, dtype=np.int64)

    @property
    def drafters(self) -> tuple[str, ...]:
        """See `Policy.drafters`."""
        return self._drafters

    @property
    def max_depth(self) -> int:
        """See `Policy.max_depth`."""
        return self._chooser.max_depth

    def start(self, row: int, task: int) -> None:
        """See `Policy.start`."""
        self._tasks[row] = task
        self._chooser.start(row, task)
        if self._guard is not None:
            self._guard.start()
        if self._dwell is not None:
            self._dwell.start(row)

    def finish(self, row: int) -> None:
        """See `Policy.finish`."""
        self._chooser.finish(row)

    def decide(self, signals: BatchSignals) -> Decision:
        """See `Policy.decide`."""
        if len(self._zeros) != len(signals.rows):
            self._zeros = np.zeros(len(signals.rows), dtype=np.int64)
        if self._max_batch_size is not None and signals.round_size > self._max_batch_size:
            return self._none(Reason.CEILING)
        stance = Stance.RUN if self._guard is None else self._guard.stance(signals)
        if stance in (Stance.OFF, Stance.PLAIN_ONCE):
            return self._none(Reason.GUARD)
        choice = self._chooser.choose(signals)
        if stance is Stance.PROBE:
            reasons = np.where(choice.depths > 0, int(Reason.PROBE), choice.reasons)
            choice = replace(choice, reasons=reasons)
        elif self._dwell is not None:
            depths, reasons = self._dwell.hold(signals.rows, choice.depths, choice.reasons, signals.limits)
            choice = replace(choice, depths=depths, reasons=reasons)
        drafting = some(choice.depths)
        stop = self._stop_of(choice, signals) if drafting else None
        drafter = self._zeros if choice.drafter is None else choice.drafter
        return Decision(choice.depths, choice.reasons, drafter, stop, choice.provenance)

    def learn(self, record: RoundRecord) -> None:
        """See `Policy.learn`."""
        self._chooser.learn(record)
        self._stop.learn(record)
        if self._guard is not None:
            self._guard.after(record)

    def _none(self, reason: Reason) -> Decision:
        return Decision(self._zeros, np.full(len(self._zeros), int(reason), dtype=np.int64), self._zeros)

    def _stop_of(self, choice: Choice, signals: BatchSignals) -> RoundStop | None:
        otherwise = self._stop.begin(choice) if choice.stop is None else choice.stop
        if not self._task_stops:
            return otherwise
        tasks = self._tasks[signals.rows]
        return stop_by_task({task: rule.begin(choice) for task, rule in self._task_stops.items()}, otherwise, tasks)

"""A policy put together from its parts: algorithm, stop rule, guard, and what is different for some tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from adaptspec.control.algorithms.algorithm import Algorithm, Choice
from adaptspec.control.algorithms.goodput import Goodput
from adaptspec.control.ceilings import Ceilings, Dwell, TaskTiers
from adaptspec.control.draft_temperature import DraftTemperature
from adaptspec.control.guard import Guard, Mode
from adaptspec.control.policy import BatchSignals, Decision, Learner, Policy
from adaptspec.control.rows import some
from adaptspec.control.stopping import StopRule
from adaptspec.draft_tables import StopTable
from adaptspec.types import FloatArray, IntArray, Reason, RoundRecord


class ComposedPolicy(Policy):
    """Guard and ceilings -> algorithm -> dwell -> tiers of tasks -> stop rule."""

    def __init__(
        self,
        algorithm: Algorithm,
        drafters: tuple[str, ...],
        *,
        stop: StopRule | None = None,
        guard: Guard | None = None,
        dwell: Dwell | None = None,
        ceilings: Ceilings | None = None,
        task_tiers: TaskTiers | None = None,
        task_stops: Mapping[int, StopRule] | None = None,
        values: Goodput | None = None,
        temperature: DraftTemperature | None = None,
    ) -> None:
        """`values` says what a stop rule asks for where the algorithm expects nothing."""
        self.drafters, self.max_depth = drafters, algorithm.max_depth
        self._algorithm = algorithm
        self._stop = stop or StopRule()
        self._guard = guard
        self._dwell = dwell
        self._ceilings = ceilings
        self._task_tiers = task_tiers
        self._barred = False  # a ceiling left no row a single token
        self._task_stops = dict(task_stops or {})
        self._values = values
        self._temperature = temperature
        parts: dict[str, Learner | None] = {"stop": self._stop, "outlook": values, "temperature": temperature}
        parts.update({f"stop-of-task-{task}": rule for task, rule in self._task_stops.items()})
        self._beside = {name: part for name, part in parts.items() if part is not None}  # what learns, by name
        self._stacked: tuple[bytes, tuple[StopTable | None, ...], StopTable | None] | None = None

    @property
    def search_depth(self) -> int | None:
        return self._algorithm.search_depth

    def start(self, row: int) -> None:
        self._algorithm.start(row)
        for part in (self._guard, self._dwell, self._values):
            if part is not None:
                part.start(row)

    def finish(self, row: int) -> None:
        self._algorithm.finish(row)

    def decide(self, signals: BatchSignals) -> Decision:
        limits = signals.limits
        lowered = limits if self._ceilings is None else self._ceilings.limits(signals)
        self._barred = lowered is not limits and not some(lowered)
        if self._barred:
            return self._none(signals, Reason.CEILING)
        if lowered is not limits:
            signals = replace(signals, limits=lowered, found=np.minimum(signals.found, lowered))
        mode = Mode.RUN if self._guard is None else self._guard.mode(signals)
        if mode is Mode.OFF or mode is Mode.PLAIN_ONCE:
            return self._none(signals, Reason.GUARD)
        choice = self._algorithm.choose(signals)
        if mode is Mode.PROBE:
            choice = replace(choice, reasons=np.where(choice.depths > 0, int(Reason.PROBE), choice.reasons))
        elif self._dwell is not None:
            choice = self._dwell.hold(signals, choice)
        if self._task_tiers is not None:
            choice = self._on_tiers(choice, self._task_tiers.lower(choice.depths, signals.tasks))
        if lowered is not limits:
            # Rows at a limit that a ceiling lowered are there because of it.
            bound = (choice.depths == lowered) & (lowered < np.minimum(limits, self.max_depth))
            choice = replace(choice, reasons=np.where(bound, int(Reason.CEILING), choice.reasons))
        return self._decision(choice, signals)

    def learn(self, record: RoundRecord) -> None:
        self._algorithm.learn(record)
        self._stop.learn(record)
        for task, rule in self._task_stops.items():
            mine = record.tasks == task
            if rule.learns and some(mine):
                rule.learn(record.take(np.flatnonzero(mine)))
        if self._values is not None:
            self._values.learn(record)
        if self._temperature is not None and record.temperature_scores is not None:
            self._temperature.learn(record)
        # A guard learns nothing of rounds in which nobody could have drafted.
        if self._guard is not None and not self._barred:
            self._guard.after(record)

    def state(self) -> dict[str, FloatArray]:
        """The algorithm's, and under names of their own those of stop rules, values and the draft temperature.

        A guard measures anew: whether speculation loses is a matter of this machine at this hour, and where it does a
        guard finds out within the time of a dozen plain rounds. Dwelling is a matter of rows, which do not outlive us.
        """
        known = self._algorithm.state()
        for name, part in self._beside.items():
            known.update({f"@{name}/{own}": values for own, values in part.state().items()})
        return known

    def _decision(self, choice: Choice, signals: BatchSignals) -> Decision:
        stop = temperature = None
        if some(choice.depths):
            stop = self._stop_of(choice, signals)
            temperature = None if self._temperature is None else self._temperature.table(len(choice.depths))
        expected = choice.expected
        if expected is None and choice.value is not None:
            expected = choice.value.expected(choice.depths, choice.drafter)
        return Decision(
            choice.depths,
            choice.reasons,
            np.zeros(len(choice.depths), dtype=np.int64) if choice.drafter is None else choice.drafter,
            stop,
            choice.provenance,
            temperature,
            expected=expected,
        )

    def _on_tiers(self, choice: Choice, depths: IntArray) -> Choice:
        lowered = depths < choice.depths
        if not lowered.any():
            return choice
        reasons = np.where(lowered, int(Reason.CEILING), choice.reasons)
        return replace(choice, depths=depths, reasons=reasons, expected=None)

    @staticmethod
    def _none(signals: BatchSignals, reason: Reason) -> Decision:
        rows = len(signals.rows)
        nothing: IntArray = np.zeros(rows, dtype=np.int64)
        return Decision(nothing, np.full(rows, int(reason)), nothing)

    def _stop_of(self, choice: Choice, signals: BatchSignals) -> StopTable | None:
        if self._values is not None and choice.value is None:
            choice = replace(choice, value=self._values.value(signals))
        usual = self._stop.table(choice) if choice.stop is None else choice.stop
        tasks = signals.tasks
        tables = {task: rule.table(choice) for task, rule in self._task_stops.items() if task in tasks}
        if not tables:
            return usual
        # The tables of tasks' own beside that of all others; kept while none changes.
        made, last = (*tables.values(), usual), self._stacked
        if last is None or last[0] != tasks.tobytes() or any(a is not b for a, b in zip(last[1], made, strict=True)):
            lanes = [(np.flatnonzero(tasks == task), table) for task, table in tables.items()]
            lanes.append((np.flatnonzero(~np.isin(tasks, list(tables))), usual))
            last = self._stacked = tasks.tobytes(), made, StopTable.stacked(lanes, len(tasks))
        return last[2]

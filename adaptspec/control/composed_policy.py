"""A policy put together from its parts: algorithm, stop rule, guard, and what is different for some tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from adaptspec.arrays import FloatArray, IntArray
from adaptspec.control.algorithms.algorithm import Algorithm, Choice
from adaptspec.control.algorithms.goodput import Goodput
from adaptspec.control.guard import Guard, Guarded, Mode
from adaptspec.control.limits import BatchLimits, TaskLimits
from adaptspec.control.policy import BatchSignals, Learner, Policy
from adaptspec.control.stopping import StopRule
from adaptspec.control.tree_limits import TreeLimits
from adaptspec.decision import Decision, Reason, StopTable
from adaptspec.rounds import RoundRecord


class _Memo(NamedTuple):
    """What the parts of a policy want back with a round's record; None where a part was not asked."""

    guard: Guarded | None
    algorithm: object


@dataclass(eq=False)
class ComposedPolicy(Policy):
    """Limits of batch sizes and tasks -> guard -> algorithm -> tiers of tasks -> stop rule and limits of trees."""

    algorithm: Algorithm
    drafters: tuple[str, ...]
    stop: StopRule = field(default_factory=StopRule)
    guard: Guard | None = None
    batch_limits: BatchLimits | None = None
    task_limits: TaskLimits | None = None
    task_stops: Mapping[int, StopRule] = field(default_factory=dict)
    values: Goodput | None = None  # estimates the value of drafts for the stop rule where the algorithm has none
    draft_temperature: tuple[float, float] | None = None  # of certain tokens, and of unsure ones
    tree_limits: TreeLimits | None = None  # None: drafts are chains
    _stacked: tuple[bytes, tuple[StopTable | None, ...], StopTable | None] | None = None

    def __post_init__(self) -> None:
        self.max_depth = self.algorithm.max_depth

    @property
    def search_depth(self) -> int | None:
        return self.algorithm.search_depth

    def start(self, row: int) -> None:
        self.algorithm.start(row)
        for part in (self.guard, self.values):
            if part is not None:
                part.start(row)

    def finish(self, row: int) -> None:
        self.algorithm.finish(row)

    def decide(self, signals: BatchSignals) -> Decision:
        limits, lowered = signals.limits, self._lowered(signals)
        if lowered is not limits and not lowered.any():  # no row may draft: the guard does not judge this round
            return self._none(signals, Reason.CEILING)
        if lowered is not limits:
            signals = replace(signals, limits=lowered, found=np.minimum(signals.found, lowered))
        guarded = None if self.guard is None else self.guard.decide(signals)
        mode = Mode.RUN if guarded is None else guarded.mode
        if mode is Mode.OFF or mode is Mode.PLAIN_ONCE:
            return replace(self._none(signals, Reason.GUARD), once=mode is Mode.PLAIN_ONCE, memo=_Memo(guarded, None))
        choice = self.algorithm.choose(signals)
        if mode is Mode.PROBE:
            probes = np.where(choice.depths > 0, int(Reason.PROBE), choice.reasons)
            choice = replace(choice, reasons=probes, once=True)
        if self.task_limits is not None:
            depths = self.task_limits.lower(choice.depths, signals.tasks)
            cut = depths < choice.depths  # the algorithm chose a depth between two tiers of the row's task
            if cut.any():
                reasons = np.where(cut, int(Reason.CEILING), choice.reasons)
                choice = replace(choice, depths=depths, reasons=reasons, expected=None)
        if lowered is not limits:
            # Rows that run at a lowered limit have it as their reason.
            bound = (choice.depths == lowered) & (lowered < np.minimum(limits, self.max_depth))
            choice = replace(choice, reasons=np.where(bound, int(Reason.CEILING), choice.reasons))
        return replace(self._decision(choice, signals), memo=_Memo(guarded, choice.memo))

    def learn(self, record: RoundRecord, memo: object = None) -> None:
        guarded, chosen = memo if isinstance(memo, _Memo) else _Memo(None, None)
        self.algorithm.learn(record, chosen)
        self.stop.learn(record)
        for task, rule in self.task_stops.items():
            of_task = record.tasks == task
            if rule.learns and of_task.any():
                rule.learn(record.take(np.flatnonzero(of_task)))
        if self.values is not None:
            self.values.learn(record)
        if self.guard is not None and guarded is not None:
            self.guard.learn(record, guarded)

    def state(self) -> dict[str, FloatArray]:
        """The algorithm's state, and under prefixed names those of stop rules and `values`.

        A guard keeps nothing: see `Guard`.
        """
        known = self.algorithm.state()
        parts: dict[str, Learner | None] = {"stop": self.stop, "outlook": self.values}
        parts.update({f"stop-of-task-{task}": rule for task, rule in self.task_stops.items()})
        for name, part in parts.items():
            if part is not None:
                known.update({f"@{name}/{own}": values for own, values in part.state().items()})
        return known

    def _lowered(self, signals: BatchSignals) -> IntArray:
        """What the rows may draft under all limits [B]: `signals.limits` itself where nothing lowers them."""
        if self.batch_limits is None and self.task_limits is None:
            return signals.limits
        deepest = np.minimum(signals.limits, self.max_depth)
        lowered = deepest if self.batch_limits is None else np.minimum(deepest, self.batch_limits.of(signals))
        if self.task_limits is not None:
            lowered = self.task_limits.lower(lowered, signals.tasks)
        bound = lowered < deepest
        return np.where(bound, lowered, signals.limits) if bound.any() else signals.limits

    def _decision(self, choice: Choice, signals: BatchSignals) -> Decision:
        stop = temperature = tree = None
        if choice.depths.any():
            priced = choice
            if self.values is not None and choice.value is None:
                priced = replace(choice, value=self.values.value(signals))
            stop = self._stop_of(priced, signals.tasks)
            tree = None if self.tree_limits is None else self.tree_limits.table(priced)
            if self.draft_temperature is not None:
                temperature = np.tile(self.draft_temperature, (len(choice.depths), 1))
        expected = choice.expected
        if expected is None and choice.value is not None:
            expected = choice.value.expected(choice.depths, choice.drafter)
        return Decision(
            choice.depths,
            choice.reasons,
            choice.drafter,
            stop,
            temperature,
            expected=expected,
            tree=tree,
            union=None if tree is None or choice.union is None else choice.union.where(choice.depths > 0),
            once=choice.once,
        )

    @staticmethod
    def _none(signals: BatchSignals, reason: Reason) -> Decision:
        nothing: IntArray = np.zeros_like(signals.rows)
        return Decision(nothing, np.full_like(nothing, int(reason)), nothing)

    def _stop_of(self, choice: Choice, tasks: IntArray) -> StopTable | None:
        usual = self.stop.table(choice) if choice.stop is None else choice.stop
        tables = {task: rule.table(choice) for task, rule in self.task_stops.items() if task in tasks}
        if not tables:
            return usual
        # One table joined from those of the tasks and the usual one, kept until one of them changes.
        made, last = (*tables.values(), usual), self._stacked
        if last is None or last[0] != tasks.tobytes() or any(a is not b for a, b in zip(last[1], made, strict=True)):
            parts = [(np.flatnonzero(tasks == task), table) for task, table in tables.items()]
            parts.append((np.flatnonzero(~np.isin(tasks, list(tables))), usual))
            last = self._stacked = tasks.tobytes(), made, StopTable.stacked(parts, len(tasks))
        return last[2]

"""The rows of a round: what belongs to each, which policy decides for which, and by which numbers drafters go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from adaptspec.arrays import BoolArray, FloatArray, IntArray
from adaptspec.control.decision_cache import RoundRows
from adaptspec.control.policy import BatchSignals, Policy
from adaptspec.request import SpeculationParams
from adaptspec.rounds import Decision, Expected, RoundRecord, StopTable, TreeTable, Union, stacked_temperatures

_UNBOUND = int(np.iinfo(np.int64).max)


def total(values: IntArray) -> int:
    """The sum of a one-dimensional array; of one value in a tenth of numpy's time, since rounds of one are short."""
    return int(values.item() if len(values) == 1 else values.sum())


def some(values: IntArray | BoolArray) -> bool:
    """Whether any value is not zero, in a fifth of the time of `any`."""
    return bool(np.count_nonzero(values))


def alike(values: IntArray, value: int) -> bool:
    """Whether all values are `value`."""
    return bool(np.count_nonzero(values == value) == len(values))


class Rows:
    """What belongs to the request in each row, as arrays [rows]: signals and records carry it, no part keeps a copy.

    A free row has the values of its last request, but for what that had asked for.
    """

    def __init__(self, rows: int) -> None:
        self.policies, self.tasks = (np.zeros(rows, dtype=np.int64) for _ in range(2))
        self.ceilings: IntArray = np.full(rows, _UNBOUND)
        self.thresholds: FloatArray = np.full(rows, np.nan)
        self.requests: IntArray = np.zeros(rows, dtype=np.int64)  # numbers of requests, in the order of their starts
        self._num_started = 0
        self.taken = [False] * rows
        self.with_thresholds = 0

    def start(self, row: int, policy: int, task: int, asked: SpeculationParams) -> None:
        self.policies[row], self.tasks[row] = policy, task
        self.taken[row] = True
        self._num_started += 1
        self.requests[row] = self._num_started
        if asked.max_depth is not None:
            self.ceilings[row] = asked.max_depth
        if asked.stop_threshold is not None:
            self.thresholds[row] = asked.stop_threshold
            self.with_thresholds += 1

    def finish(self, row: int) -> None:
        self.taken[row], self.ceilings[row] = False, _UNBOUND
        if not np.isnan(self.thresholds[row]):
            self.thresholds[row] = np.nan
            self.with_thresholds -= 1

    def of_round(self, signals: BatchSignals, max_depth: int) -> RoundRows:
        """The rows of a round; limits are those up to `max_depth`."""
        rows, limits = signals.rows, np.minimum(signals.limits, max_depth)
        return RoundRows(self.requests[rows], self.policies[rows], self.tasks[rows], limits, self.thresholds[rows])

    def of(self, policy: int) -> list[int]:
        return [row for row, taken in enumerate(self.taken) if taken and self.policies[row] == policy]


class DrafterNumbers:
    """One policy's drafters among the engine's: its first is number 0 to the policy, any number to the engine."""

    def __init__(self, wanted: Sequence[str], drafters: Sequence[str]) -> None:
        """`wanted` are the policy's, all of them among the engine's `drafters`; none for a policy that never drafts."""
        self.watched = tuple(drafters.index(name) for name in wanted)
        self._engine: IntArray = np.array(self.watched or (0,), dtype=np.int64)
        self._own: IntArray = np.zeros(max(1, len(drafters)), dtype=np.int64)
        self._own[self._engine] = np.arange(len(self._engine))
        self.alike = self._engine.tolist() == list(range(len(self._engine)))

    def signals(self, signals: BatchSignals) -> BatchSignals:
        """For the policy: what is known of its drafters first."""
        if self.alike:
            return signals
        own, stated = self._engine, signals.stated
        return replace(
            signals,
            cache_gap=signals.cache_gap[own],
            found=signals.found[own],
            stated=None if stated is None else stated[own],
        )

    def drafter(self, drafter: IntArray) -> IntArray:
        """For the engine: who drafts for each row [B]."""
        return drafter if self.alike else self._engine[drafter]

    def decided(self, policy: Policy, signals: BatchSignals) -> Decision:
        """What the policy decides, in the engine's numbers."""
        decision = policy.decide(self.signals(signals))
        decision.drafter = self.drafter(decision.drafter)
        if decision.union is not None:
            decision.union = Union(self.drafter(decision.union.drafter), decision.union.depths)
        return decision

    def record(self, record: RoundRecord) -> RoundRecord:
        """For the policy: a round in its own numbers. A drafter it does not have (any more) becomes its first."""
        if self.alike:
            return record
        shadow, drafted, branches = record.shadow, record.shadow_drafted, record.branches
        if branches is not None:
            tree = replace(branches.tree, drafters=self._own[branches.tree.drafters])
            branches = replace(branches, tree=tree)
        return replace(
            record,
            drafter=self._own[record.drafter],
            branches=branches,
            shadow=None if shadow is None else shadow[self._engine],
            shadow_drafted=None if drafted is None else drafted[self._engine],
            stated=None if record.stated is None else record.stated[self._engine],
        )


def decide_by_group(who: IntArray, decide: Callable[[int, BatchSignals], Decision], signals: BatchSignals) -> Decision:
    """The round's decision where `decide` is asked for the rows of each number in `who` [B]."""
    first = who.item(0)
    if len(who) == 1 or alike(who, first):
        return decide(first, signals)
    return _joined([(mine, decide(which, signals.take(mine))) for which, mine in _groups(who)], len(who))


def learn_by_group(who: IntArray, learn: Callable[[int, RoundRecord], None], record: RoundRecord) -> None:
    """Have `learn` told of the rows of each number in `who` [B]."""
    first = who.item(0)
    if len(who) == 1 or alike(who, first):
        learn(first, record)
        return
    for which, mine in _groups(who):
        learn(which, record.take(mine))


def _groups(who: IntArray) -> list[tuple[int, IntArray]]:
    return [(which, np.flatnonzero(who == which)) for which in np.unique(who).tolist()]


def _joined(parts: Sequence[tuple[IntArray, Decision]], rows: int) -> Decision:
    """The decision for `rows` rows from those for parts of them, by position in the batch; drafters count alike."""
    depths, reasons, drafter = (np.zeros(rows, dtype=np.int64) for _ in range(3))
    for mine, part in parts:
        depths[mine], reasons[mine], drafter[mine] = part.depths, part.reasons, part.drafter
    return Decision(
        depths,
        reasons,
        drafter,
        StopTable.stacked([(mine, part.stop) for mine, part in parts], rows),
        stacked_temperatures([(mine, part.draft_temperature) for mine, part in parts], rows),
        tuple(sorted({which for _, part in parts for which in part.watched})),
        _expected(parts, rows),
        tree=TreeTable.stacked([(mine, part.tree) for mine, part in parts], rows),
        union=Union.stacked([(mine, part.union) for mine, part in parts], rows),
        once=any(part.once for _, part in parts),
    )


def _expected(parts: Sequence[tuple[IntArray, Decision]], rows: int) -> Expected | None:
    """`Decision.expected` of all rows: accepted tokens by row, and no goodput of the whole round; None without any."""
    known = [(mine, part.expected) for mine, part in parts if part.expected is not None]
    if not known:
        return None
    whole = Expected(np.nan, np.full(rows, np.nan))
    for mine, expected in known:
        whole.accepted[mine] = expected.accepted
    return whole

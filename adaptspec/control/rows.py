"""The rows of a round: the attributes of their requests, their groups by policy, and each policy's drafter numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from adaptspec.arrays import FloatArray, IntArray
from adaptspec.control.decision_cache import RoundRows
from adaptspec.control.policy import BatchSignals, Policy
from adaptspec.decision import Decision, Expected, StopTable, TreeTable, Union, stacked_temperatures
from adaptspec.request import SpeculationParams
from adaptspec.rounds import RoundRecord

_UNBOUND = int(np.iinfo(np.int64).max)


class Rows:
    """Attributes of the request in each row, as arrays [rows]. Signals and records carry them; no part keeps a copy.

    A free row has the values of its last request, without that request's limits.
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
    """A policy's numbers of its drafters, 0 for the first, and the engine's numbers of the same drafters."""

    def __init__(self, wanted: Sequence[str], drafters: Sequence[str]) -> None:
        """`wanted` are the policy's, all of them among the engine's `drafters`; none for a policy that never drafts."""
        self.watched = tuple(drafters.index(name) for name in wanted)
        self._engine: IntArray = np.array(self.watched or (0,), dtype=np.int64)
        self._of_engine: IntArray = np.zeros(max(1, len(drafters)), dtype=np.int64)
        self._of_engine[self._engine] = np.arange(len(self._engine))
        self._identical = self._engine.tolist() == list(range(len(self._engine)))

    def signals(self, signals: BatchSignals) -> BatchSignals:
        """For the policy: arrays by drafter begin with its drafters."""
        if self._identical:
            return signals
        index, stated = self._engine, signals.stated
        return replace(
            signals,
            cache_gap=signals.cache_gap[index],
            found=signals.found[index],
            stated=None if stated is None else stated[index],
        )

    def drafter(self, drafter: IntArray) -> IntArray:
        """For the engine: the drafter of each row [B]."""
        return drafter if self._identical else self._engine[drafter]

    def decided(self, policy: Policy, signals: BatchSignals) -> Decision:
        """What the policy decides, in the engine's numbers."""
        decision = policy.decide(self.signals(signals))
        if self._identical:
            return decision
        union = decision.union
        if union is not None:
            union = Union(self.drafter(union.drafter), union.depths)
        return replace(decision, drafter=self.drafter(decision.drafter), union=union)

    def record(self, record: RoundRecord) -> RoundRecord:
        """For the policy: a round in its own numbers. A drafter it does not have (any more) becomes its first."""
        if self._identical:
            return record
        shadow, drafted, branches = record.shadow, record.shadow_drafted, record.branches
        if branches is not None:
            tree = replace(branches.tree, drafter=self._of_engine[branches.tree.drafter])
            branches = replace(branches, tree=tree)
        return replace(
            record,
            drafter=self._of_engine[record.drafter],
            branches=branches,
            shadow=None if shadow is None else shadow[self._engine],
            shadow_drafted=None if drafted is None else drafted[self._engine],
            stated=None if record.stated is None else record.stated[self._engine],
        )


def decide_by_group(
    groups: IntArray, decide: Callable[[int, BatchSignals], Decision], signals: BatchSignals
) -> Decision:
    """The round's decision; `decide(group, signals)` returns that for the rows of each number in `groups` [B]."""
    parts = _indices(groups)
    if len(parts) == 1:
        return decide(groups.item(0), signals)
    return _joined([(index, decide(group, signals.take(index))) for group, index in parts], len(groups))


def learn_by_group(groups: IntArray, learn: Callable[[int, RoundRecord], None], record: RoundRecord) -> None:
    """Call `learn(group, record)` with the rows of each number in `groups` [B]."""
    parts = _indices(groups)
    for group, index in parts:
        learn(group, record if len(parts) == 1 else record.take(index))


def _indices(groups: IntArray) -> list[tuple[int, IntArray]]:
    """Each number and the positions of its rows."""
    return [(group, np.flatnonzero(groups == group)) for group in sorted(set(groups.tolist()))]


def _joined(parts: Sequence[tuple[IntArray, Decision]], rows: int) -> Decision:
    """The decision for `rows` rows from those for parts of them, by position in the batch; drafters count alike."""
    depths, reasons, drafter = (np.zeros(rows, dtype=np.int64) for _ in range(3))
    for index, part in parts:
        depths[index], reasons[index], drafter[index] = part.depths, part.reasons, part.drafter
    return Decision(
        depths,
        reasons,
        drafter,
        StopTable.stacked([(index, part.stop) for index, part in parts], rows),
        stacked_temperatures([(index, part.draft_temperature) for index, part in parts], rows),
        tuple(sorted({drafter_id for _, part in parts for drafter_id in part.watched})),
        _expected(parts, rows),
        tree=TreeTable.stacked([(index, part.tree) for index, part in parts], rows),
        union=Union.stacked([(index, part.union) for index, part in parts], rows),
        once=any(part.once for _, part in parts),
        parts=tuple(one for _, part in parts for one in part.parts),
    )


def _expected(parts: Sequence[tuple[IntArray, Decision]], rows: int) -> Expected | None:
    """`Decision.expected` of all rows: accepted tokens by row, and no goodput of the whole round; None without any."""
    known = [(index, part.expected) for index, part in parts if part.expected is not None]
    if not known:
        return None
    whole = Expected(np.nan, np.full(rows, np.nan))
    for index, expected in known:
        whole.accepted[index] = expected.accepted
    return whole

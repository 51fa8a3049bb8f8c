"""An algorithm of one's own: each request drafts one token more than was accepted of its last draft."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from adaptspec.arrays import IntArray
from adaptspec.control.algorithms.algorithm import Algorithm, AlgorithmSpec, Choice, Parts
from adaptspec.control.policy import BatchSignals
from adaptspec.decision import Reason
from adaptspec.rounds import RoundRecord


class LastRun(Algorithm):
    """depth = 1 + tokens accepted last, at most `max_depth`. Nothing outlives a request, so there is no state."""

    def __init__(self, rows: int, first: int, deepest: int) -> None:
        self.max_depth = deepest
        self._first = min(first, deepest)
        self._depth: IntArray = np.zeros(rows, dtype=np.int64)  # by row

    def start(self, row: int) -> None:
        """A request begins decoding in `row`."""
        self._depth[row] = self._first

    def choose(self, signals: BatchSignals) -> Choice:
        """Depths of the rows of the coming round, never beyond their limits."""
        depths = np.minimum(self._depth[signals.rows], signals.limits)
        return Choice(depths, np.full_like(depths, int(Reason.POLICY)))

    def learn(self, record: RoundRecord, memo: object = None) -> None:  # noqa: ARG002 - no choice has one
        """Take note of a round; rows that drafted nothing say nothing."""
        drafted = record.drafted > 0
        rows = record.rows[drafted]
        self._depth[rows] = np.minimum(1 + record.accepted[drafted], self.max_depth)


class LastRunSpec(AlgorithmSpec):
    """`choose: {algorithm: last-run}`. The entry point in pyproject.toml names this class."""

    takes_tiers: ClassVar[bool] = True  # a policy may say max-depth

    algorithm: Literal["last-run"]
    first: int = Field(default=3, ge=1, le=64, description="Depth of a request's first draft.")

    def build(self, parts: Parts) -> LastRun:
        """The algorithm, once for each policy that names it."""
        return LastRun(parts.max_rows, self.first, max(parts.tiers, default=0))

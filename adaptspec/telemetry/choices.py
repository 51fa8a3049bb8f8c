"""How choices follow each other, and whether what was expected of them came: counted over rounds.

Knows rounds as numbers; it judges no policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from adaptspec.control.guard import GuardEvents
from adaptspec.types import IntArray, RoundRecord


@dataclass(frozen=True)
class Calibration:
    """What policies that estimate expected, and what came, over the rounds that they said something of.

    Tokens: by expected goodput over the seconds that rounds took. Accepted: drafted tokens, by row.
    """

    predicted_tokens: float = 0.0
    realised_tokens: int = 0
    predicted_accepted: float = 0.0
    realised_accepted: int = 0

    @property
    def goodput_ratio(self) -> float:
        """Predicted goodput over realised; above 1: too hopeful. 1 before anything was predicted."""
        return self.predicted_tokens / self.realised_tokens if self.realised_tokens else 1.0

    @property
    def accepted_ratio(self) -> float:
        """The same of accepted tokens."""
        return self.predicted_accepted / self.realised_accepted if self.realised_accepted else 1.0


class Predictions:
    """Sums behind a `Calibration`."""

    def __init__(self) -> None:
        self.calibration = Calibration()

    def add(self, records: Sequence[RoundRecord]) -> None:
        """Some more rounds. The time of one that reads a prompt is the prompt's as well: its goodput is left out."""
        told = [(record, record.expected) for record in records if record.expected is not None]
        if not told:
            return
        timed = [(r, e) for r, e in told if not r.prefill_tokens and e.goodput == e.goodput]
        hopes = np.concatenate([expected.accepted for _, expected in told])
        drafted = np.concatenate([record.drafted for record, _ in told]) > 0
        came = np.concatenate([np.minimum(record.accepted, record.emitted) for record, _ in told])
        told_of = drafted & ~np.isnan(hopes)
        before = self.calibration
        self.calibration = Calibration(
            before.predicted_tokens + sum(expected.goodput * record.total_seconds for record, expected in timed),
            before.realised_tokens + int(sum(record.emitted.sum() for record, _ in timed)),
            before.predicted_accepted + float(hopes[told_of].sum()),
            before.realised_accepted + int(came[told_of].sum()),
        )


class Choices:
    """Counts switches of depth and drafter within requests, and what guards did."""

    def __init__(self, max_rows: int, drafters: int) -> None:
        self._depth: IntArray = np.full(max_rows, -1, dtype=np.int64)
        self._drafter: IntArray = np.full(max_rows, -1, dtype=np.int64)
        self.drafts: IntArray = np.zeros(drafters, dtype=np.int64)  # row-rounds that drafted with each
        self.depth_switches = 0
        self.drafter_switches = 0
        self.guarding = GuardEvents()

    def start(self, row: int) -> None:
        """A request begins in `row`."""
        self._depth[row] = self._drafter[row] = -1

    def add(self, records: Sequence[RoundRecord], rows: IntArray) -> None:
        """Rounds in order, each with rows; `rows` [N] are their requests' own."""
        depths, drafter, drafted = (
            np.concatenate([getattr(record, name) for record in records]) for name in ("depths", "drafter", "drafted")
        )
        self.depth_switches += _changes(self._depth, rows, depths)
        on = depths > 0
        self.drafter_switches += _changes(self._drafter, rows[on], drafter[on])
        self.drafts += np.bincount(drafter[drafted > 0], minlength=len(self.drafts))
        for record in records:
            self.guarding.add(record.reasons.tolist())


def _changes(last: IntArray, rows: IntArray, values: IntArray) -> int:
    """How often a row's value is another than the one before it; -1 is none yet. Notes the latest in `last`."""
    order = np.argsort(rows, kind="stable")
    rows, values = rows[order], values[order]
    before = values.copy()
    before[1:] = values[:-1]
    first = np.ones(len(rows), dtype=np.bool_)
    first[1:] = rows[1:] != rows[:-1]
    before[first] = last[rows[first]]
    last[rows] = values
    return int(np.count_nonzero((before >= 0) & (before != values)))

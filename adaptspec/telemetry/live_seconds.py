"""What rounds did, second by second: the recent past as sums, from which any rate over any window follows.

Rounds are added many at a time, in vectorised passes. Knows arrays and names of tasks; no request, and no clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from adaptspec.control.tasks import OTHER
from adaptspec.types import FloatArray, IntArray, Reason, RoundRecord

# Columns of what is summed by drafter and by task, as they go over the wire.
DRAFTER_COLUMNS = ("rounds", "drafted", "accepted")
TASK_COLUMNS = ("rounds", "drafting", "drafted", "accepted", "emitted", "entropy_sum", "entropy_count")


@dataclass(eq=False)
class Second:
    """Sums over the rounds and requests that ended in one second; `at` is its beginning, in seconds since 1970.

    `rows` are row-rounds: rounds of single requests. `busy` is the time that the rounds took, in seconds. Tokens that
    verification kept but the client does not get (behind the end of an answer) are in no sum but `drafted`; the first
    token of an answer, which comes with its prompt, is in none. Entropy is that of drafts, in nats.
    """

    at: int
    rounds: int = 0
    rows: int = 0
    emitted: int = 0
    drafted: int = 0
    accepted: int = 0
    prefill_tokens: int = 0
    busy: float = 0.0
    ended: int = 0  # requests
    depths: IntArray = field(default_factory=lambda: np.zeros(1, dtype=np.int64))  # row-rounds by decided depth
    reasons: IntArray = field(default_factory=lambda: np.zeros(1 + max(Reason), dtype=np.int64))  # and by why
    off: IntArray = field(default_factory=lambda: np.zeros(1 + max(Reason), dtype=np.int64))  # those of depth 0
    drafters: IntArray = field(default_factory=lambda: np.zeros((0, len(DRAFTER_COLUMNS)), dtype=np.int64))
    tasks: dict[str, FloatArray] = field(default_factory=dict)  # by TASK_COLUMNS
    compared: list[float] | None = None  # by COMPARED_COLUMNS of `live_earnings`; None: nothing was estimated

    def add(self, records: Sequence[RoundRecord], tasks: Mapping[str, str | None]) -> None:
        """Take rounds into account. `tasks` names the task of each of their requests, as far as it is known."""
        rows = _Rows.of(records)
        self.rounds += len(records)
        self.prefill_tokens += sum(record.prefill_tokens for record in records)
        self.busy += sum(record.total_seconds for record in records)
        self.rows += len(rows.depths)
        self.emitted += int(rows.emitted.sum())
        self.drafted += int(rows.drafted.sum())
        self.accepted += int(rows.accepted.sum())
        self.depths = _added(self.depths, rows.depths)
        self.reasons = _added(self.reasons, rows.reasons)
        self.off = _added(self.off, rows.reasons[rows.depths == 0])
        self._add_drafters(rows)
        names = [tasks.get(name) or OTHER for record in records for name in record.request_ids]
        self._add_tasks(rows, names)

    def compare(self, more: Sequence[float]) -> None:
        """Take more of what was estimated into account."""
        self.compared = [round(a + b, 6) for a, b in zip(self.compared or [0.0] * len(more), more, strict=True)]

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "at": self.at,
            "rounds": self.rounds,
            "rows": self.rows,
            "emitted": self.emitted,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "prefill_tokens": self.prefill_tokens,
            "busy": round(self.busy, 6),
            "ended": self.ended,
            "depths": self.depths.tolist(),
            "reasons": self.reasons.tolist(),
            "off": self.off.tolist(),
            "drafters": self.drafters.tolist(),
            "compared": self.compared,
            "tasks": {name: np.round(sums, 4).tolist() for name, sums in self.tasks.items()},
        }

    def _add_drafters(self, rows: _Rows) -> None:
        used = rows.drafted > 0
        which, columns = rows.drafter[used], (np.ones(int(used.sum())), rows.drafted[used], rows.accepted[used])
        size = max(int(which.max(initial=-1)) + 1, len(self.drafters))
        grown = np.zeros((size, len(DRAFTER_COLUMNS)), dtype=np.int64)
        grown[: len(self.drafters)] = self.drafters
        for column, values in enumerate(columns):
            grown[:, column] += np.bincount(which, values, minlength=size).astype(np.int64)
        self.drafters = grown

    def _add_tasks(self, rows: _Rows, names: Sequence[str]) -> None:
        known = list(dict.fromkeys(names))
        code = {name: i for i, name in enumerate(known)}
        which = np.array([code[name] for name in names], dtype=np.int64)
        for column, values in enumerate(rows.task_columns()):
            sums = np.bincount(which, values, minlength=len(known))
            for name, value in zip(known, sums.tolist(), strict=True):
                if name not in self.tasks:
                    self.tasks[name] = np.zeros(len(TASK_COLUMNS))
                self.tasks[name][column] += value


@dataclass(frozen=True)
class _Rows:
    """The rows of many rounds, one after the other."""

    depths: IntArray
    reasons: IntArray
    drafter: IntArray
    drafted: IntArray
    accepted: IntArray  # of the emitted tokens
    emitted: IntArray
    entropy_sum: FloatArray
    entropy_count: IntArray

    @classmethod
    def of(cls, records: Sequence[RoundRecord]) -> _Rows:
        def gather(name: str) -> IntArray:
            values: IntArray = np.concatenate([getattr(record, name) for record in records])
            return values

        emitted, flat = gather("emitted"), np.concatenate([record.entropy.ravel() for record in records])
        size = len(emitted)
        widths = np.repeat([r.entropy.shape[1] for r in records], [r.entropy.shape[0] for r in records])
        row, known = np.repeat(np.arange(size), widths), ~np.isnan(flat)
        return cls(
            depths=gather("depths"),
            reasons=gather("reasons"),
            drafter=gather("drafter"),
            drafted=gather("drafted"),
            accepted=np.minimum(gather("accepted"), emitted),
            emitted=emitted,
            entropy_sum=np.bincount(row[known], flat[known], minlength=size).astype(np.float64),
            entropy_count=np.bincount(row[known], minlength=size),
        )

    def task_columns(self) -> tuple[IntArray | FloatArray, ...]:
        """In the order of TASK_COLUMNS."""
        drafting = (self.drafted > 0).astype(np.int64)
        ones = np.ones(len(drafting), dtype=np.int64)
        return (
            ones, drafting, self.drafted, self.accepted, self.emitted, self.entropy_sum, self.entropy_count
        )  # fmt: skip


def _added(tally: IntArray, values: IntArray) -> IntArray:
    counts = np.bincount(values, minlength=len(tally)).astype(np.int64)
    counts[: len(tally)] += tally
    return counts

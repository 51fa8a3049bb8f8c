"""What a draft's confidence in a token says of its being accepted, learned online.

Knows confidences and counts; it decides nothing.
"""

from __future__ import annotations

import numpy as np

from adaptspec.types import FloatArray, IntArray

_LEAST = 0.01


class Calibration:
    """P(accepted | the draft's confidence in its token, the row), by bins of confidence, in decayed counts.

    Starts as `_LEAST_SURE` + (1 - `_LEAST_SURE`) x confidence, worth `weight` observations per bin: small drafts are
    right more often than unsure ones believe. Only positions that verification reached count: beyond the first
    rejection nothing is known. Each row has a factor, how much more often it is rejected than its confidences
    would have it: (rejections + pull x factor of its task) / (expected rejections + pull), over its last dozens of
    tokens; a task's is (rejections + pull) / (expected + pull) over its last hundreds. A row that repeats itself is
    surer than its draft knows, one that copies rare names less so; a draft may know a task's answers and not its words
    for them.
    """

    _LEAST_SURE = 0.35
    _ROW_PULL, _ROW_FADE = 3.0, 0.95
    _TASK_PULL, _TASK_FADE = 6.0, 0.995

    def __init__(
        self, rows: int = 1, tasks: int = 1, *, bins: int = 10, discount: float = 0.999, weight: float = 4.0
    ) -> None:
        self.bins = bins
        self._discount = discount
        self._weight = weight
        self._prior: FloatArray = self._LEAST_SURE + (1.0 - self._LEAST_SURE) * (np.arange(bins) + 0.5) / bins
        self._reached: FloatArray = np.zeros(bins)
        self._accepted: FloatArray = np.zeros(bins)
        self._table: FloatArray | None = None
        self._rows: FloatArray = np.zeros((2, rows))  # rejections: seen and expected
        self._tasks: FloatArray = np.zeros((2, tasks))

    def start(self, row: int) -> None:
        """A new request in `row`."""
        self._rows[:, row] = 0.0

    def observe(
        self,
        confidence: FloatArray,
        drafted: IntArray,
        accepted: IntArray,
        rows: IntArray | None = None,
        tasks: IntArray | None = None,
    ) -> None:
        """Note N row-rounds: `confidence` [N, D], NaN where unknown; `drafted`, `accepted`, `rows` and `tasks` [N].

        A row of -1 is of a request that has ended; without `rows` only the bins learn.
        """
        positions = np.arange(confidence.shape[1])
        reach = np.minimum(accepted + 1, drafted)
        known = (positions < reach[:, None]) & ~np.isnan(confidence)
        if not known.any():
            return
        which = known.nonzero()[0]
        bins = self.index(confidence[known])
        kept = (positions < accepted[:, None])[known]
        if rows is not None and tasks is not None:
            seen = np.stack((1.0 - kept, 1.0 - self.table()[bins]))
            size = self._rows.shape[1]
            who = np.where(rows < 0, size, rows)[which]
            self._rows *= self._ROW_FADE ** np.bincount(who, minlength=size)[:size]
            self._rows += [np.bincount(who, part, minlength=size)[:size] for part in seen]
            size = self._tasks.shape[1]
            who = tasks[which]
            self._tasks *= self._TASK_FADE ** np.bincount(who, minlength=size)
            self._tasks += [np.bincount(who, part, minlength=size) for part in seen]
        fade = self._discount ** len(bins)
        self._reached = self._reached * fade + np.bincount(bins, minlength=self.bins)
        self._accepted = self._accepted * fade + np.bincount(bins, kept, minlength=self.bins)
        self._table = None

    def factors(self, rows: IntArray, tasks: IntArray) -> FloatArray:
        """How many times as often as others of its confidence a row's tokens are rejected [B]."""
        told, expected = self._tasks + self._TASK_PULL
        seen, due = self._rows[:, rows]
        usual = (told / expected)[tasks]
        return np.asarray((seen + self._ROW_PULL * usual) / (due + self._ROW_PULL), dtype=np.float64)

    def of_rows(self, rows: IntArray, tasks: IntArray) -> FloatArray:
        """P(accepted) by bin, of each row [B, bins]; never quite 0, which would end a draft whatever follows."""
        wrong = self.factors(rows, tasks)[:, None] * (1.0 - self.table())
        return np.maximum(1.0 - wrong, _LEAST)

    def index(self, confidence: FloatArray) -> IntArray:
        """The bin of each confidence; any shape, no NaN."""
        return np.asarray(np.minimum(confidence * self.bins, self.bins - 1).astype(np.int64))

    def table(self) -> FloatArray:
        """P(accepted) by bin [bins], whatever the row."""
        table = self._table
        if table is None:
            table = self._table = (self._accepted + self._weight * self._prior) / (self._reached + self._weight)
        return table

    def learned(self) -> FloatArray:
        """A copy of the counts [2, bins + tasks]: by bin reached and accepted, by task rejections seen and expected."""
        return np.concatenate(([self._reached, self._accepted], self._tasks), axis=1)

    def restore(self, counts: FloatArray) -> None:
        """Go on from counts that `learned` once gave."""
        (self._reached, self._accepted), self._tasks = counts[:, : self.bins].copy(), counts[:, self.bins :].copy()
        self._table = None

    @property
    def informed(self) -> bool:
        """Whether this drafter states its confidence at all."""
        return bool(self._reached.any())

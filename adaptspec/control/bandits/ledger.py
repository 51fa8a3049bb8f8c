"""What every arm has earned and spent, in sums that fade with rounds: of all traffic, of each task, of each request."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from adaptspec.control.cost import batch_bucket
from adaptspec.control.learned import sums
from adaptspec.control.policy import BatchSignals
from adaptspec.control.tasks import TASKS
from adaptspec.types import FloatArray, IntArray, RoundRecord

Scope = Literal["request", "task", "batch-bucket", "global"]
# Rounds n, earned e, spent s, and their second moments: what a ratio of sums and its error are made of.
N, EARNED, SPENT, EARNED2, CROSS, SPENT2 = range(6)
# Scales that bring every feature to about 0 to 1.
_BATCH, _ENTROPY, _CONTEXT, _POSITION, _LENGTH = 6.0, 4.0, 12.0, 8.0, 8.0
# How fast a request's acceptance length follows its drafts.
_FOLLOWS = 0.25


class Lot(NamedTuple):
    """What G contexts, ascending, saw of K arms in the same `rounds` rounds: sums over these, [G, K, 6]."""

    contexts: IntArray
    bucket: int
    rounds: int
    sums: FloatArray


class Ledger:
    """Sums [contexts, buckets, K, 6] of all traffic, then each task, then each request, as far as the scope goes.

    `request`: a context per request, leaning on its task; `task`: one per task, leaning on all traffic; `batch-bucket`:
    one for all; `global`: one, and batch sizes count as alike. The others keep sums per bucket of 1, 2, 3-4, 5-8 ...
    rows. A context is read as its own sums plus those of the level above, scaled down to at most `weight` rounds of
    each arm: a new request begins with what its task is like, and soon goes by its own record.
    """

    def __init__(
        self, scope: Scope, rows: int, tasks: int, arms: int, *, discount: float = 0.993, weight: float = 16.0
    ) -> None:
        self.scope, self.discount, self._weight, self._rows = scope, discount, weight, rows
        self.buckets = 1 if scope == "global" else batch_bucket(rows) + 1
        # Two contexts for each row, in turns: outcomes of the last request may come while the next one runs.
        sizes = [1, tasks, 2 * rows][: {"task": 2, "request": 3}.get(scope, 1)]
        self.count = sizes[-1]
        # Known tasks have a base each; names of users' own share that of task 0, since one each would cost more.
        self.kinds = min(tasks, 1 + len(TASKS))
        self.features = self.kinds + 5
        self._first, self._levels = sum(sizes[:-1]), len(sizes)
        self._kept = {"sums.all": slice(0, 1)} | ({"sums.task": slice(1, 1 + tasks)} if len(sizes) > 1 else {})
        self._sums: FloatArray = np.zeros((sum(sizes), self.buckets, arms, 6))
        self._of_row: IntArray = np.arange(rows) if scope == "request" else np.zeros(rows, dtype=np.int64)
        self._task_of: IntArray = np.arange(self.count) if scope == "task" else np.zeros(self.count, dtype=np.int64)
        self._entropy, self._length = (np.zeros(rows) for _ in range(2))

    def start(self, row: int) -> int:
        """A request begins, which has seen nothing; its context, where each has one of its own."""
        self._entropy[row], self._length[row] = 0.0, 0.0
        if self.scope == "request":
            context = self._of_row[row] = (self._of_row[row] + self._rows) % (2 * self._rows)
            self._sums[self._first + context] = 0.0
        return int(self._of_row[row])

    def of(self, rows: IntArray, tasks: IntArray) -> IntArray:
        """The context of each row, whose request is of one of these tasks; both [B]."""
        if self.scope == "task":
            return tasks
        found: IntArray = self._of_row[rows]
        if self.scope == "request":
            self._task_of[found] = tasks
        return found

    def bucket(self, size: int) -> int:
        """Which batch sizes a round of `size` rows is compared with."""
        return min(batch_bucket(size), self.buckets - 1)

    def add(self, contexts: IntArray, bucket: int, told: FloatArray) -> Lot:
        """Take in `told` [M, B, K, 3] (seen, earned, spent) of M rounds of the rows that stand for `contexts` [B].

        Rows of one context in one round count as a single observation, their mean: they share much of what happened.
        """
        rounds, size, arms, _ = told.shape
        path = self._path(contexts)
        places, inverse = np.unique(path, return_inverse=True)
        belongs = np.zeros((len(places), size))
        belongs[inverse.reshape(path.shape), np.arange(size)] = 1.0
        seen = (belongs @ told.reshape(rounds, size, -1)).reshape(rounds, len(places), arms, 3)
        count = np.maximum(seen[..., 0], 1.0)
        earned, spent = seen[..., 1] / count, seen[..., 2] / count
        moments = (seen[..., 0] > 0, earned, spent, earned * earned, earned * spent, spent * spent)
        new = np.stack(moments, axis=-1).sum(axis=0)
        self._sums[places, bucket] = self._sums[places, bucket] * self.discount**rounds + new
        own = places >= self._first
        return Lot(places[own] - self._first, bucket, rounds, new[own])

    def read(self, contexts: IntArray, bucket: int) -> FloatArray:
        """[m, K, 6] of some contexts, each with what it leans on."""
        levels = self._sums[self._path(contexts), bucket]
        found: FloatArray = levels[0]
        for own in levels[1:]:
            found = own + np.minimum(1.0, self._weight / np.maximum(found[..., :1], 1e-9)) * found
        return found

    def note(self, rows: IntArray, contexts: IntArray, records: Sequence[RoundRecord]) -> None:
        """How sure drafts were at their ends, and how long they held, of rows whose request is still the same."""
        same = self._of_row[rows] == contexts if self.scope == "request" else np.ones(len(rows), dtype=np.bool_)
        for record in (record for record in records if record.entropy.shape[1]):
            last = record.entropy[np.arange(len(rows)), record.drafted - 1]
            known = same & (record.drafted > 0) & ~np.isnan(last)
            here = rows[known]
            self._entropy[here] = last[known]
            self._length[here] += _FOLLOWS * (record.accepted[known] - self._length[here])

    def describe(self, signals: BatchSignals, shares: FloatArray) -> FloatArray:
        """The features of contexts [m, F], means over rows weighed by `shares` [m, B]: one-hot task (so every arm has a

        base per task); log2 batch size, entropy of the last drafted token, log2 context length, log2 of tokens
        emitted so far, and the acceptance length (tokens accepted per draft), all about 0 to 1.
        """
        rows, at = np.zeros((len(signals.rows), self.features)), self.kinds
        rows[np.arange(len(rows)), np.where(signals.tasks < self.kinds, signals.tasks, 0)] = 1.0
        rows[:, at] = math.log2(signals.round_size) / _BATCH
        rows[:, at + 1] = self._entropy[signals.rows] / _ENTROPY
        rows[:, at + 2] = np.log2(signals.context + 1.0) / _CONTEXT
        rows[:, at + 3] = np.log2(signals.position + 1.0) / _POSITION
        rows[:, at + 4] = self._length[signals.rows] / _LENGTH
        found: FloatArray = shares @ rows
        return found

    def learned(self) -> dict[str, FloatArray]:
        """Sums of the levels that outlive requests."""
        return {name: self._sums[part].copy() for name, part in self._kept.items()}

    def restore(self, learned: Mapping[str, FloatArray]) -> None:
        """See `Chooser.restore`."""
        known = {name: sums(learned, name, self._sums[part].shape) for name, part in self._kept.items()}
        for name, part in self._kept.items():
            self._sums[part] = known[name]

    def _path(self, contexts: IntArray) -> IntArray:
        """[levels, m] where contexts and those they lean on are found."""
        return np.stack((np.zeros_like(contexts), 1 + self._task_of[contexts], self._first + contexts))[: self._levels]

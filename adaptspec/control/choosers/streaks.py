"""How often a lookup is right, by how often in a row it has just been right.

Text that repeats other text does so in runs: whoever is in the middle of one can be sure of the next token, whoever
found a chance match cannot. Knows counts; it decides nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from adaptspec.types import FloatArray, IntArray

# By streaks of 0, 1, 2-3, 4-7, 8-15 and more tokens: a small model's greedy answers to held-out prompts of ten tasks.
_PRIOR = np.array([0.60, 0.65, 0.80, 0.87, 0.95, 0.98])
_PRIOR_WEIGHT = 16.0  # in observations
_PULL = 16.0  # as many observations is the estimate over all traffic worth to a task's own
_KEPT = 0.999  # per observation: about the last thousand count
_MOST_NOTED = 128
_LONGEST = 16  # longer streaks are alike


class _Looked(NamedTuple):
    """Rows, of which kind they are, and how often in a row the lookup was right; all [B]."""

    rows: IntArray
    kinds: IntArray
    streaks: IntArray


class Streaks:
    """P(the next looked-up token is right | the last s were), decayed counts by task shrunk to those of all traffic."""

    def __init__(self, rows: int, tasks: int, depth: int) -> None:
        """`tasks` counts the known tasks and task 0, unknown."""
        self._counts: FloatArray = np.zeros((1 + tasks, 2, len(_PRIOR)))  # level 0 is all traffic; tried and right
        self._streak: IntArray = np.zeros(rows, dtype=np.int64)
        self._first_kind: IntArray = np.zeros(rows, dtype=np.int64)  # of the row's task
        state = [min(s.bit_length(), len(_PRIOR) - 1) for s in range(_LONGEST + depth + 1)]
        self._state: IntArray = np.array(state, dtype=np.int64)
        self._ahead: IntArray = self._state[np.arange(_LONGEST + 1)[:, None] + np.arange(depth)]
        self._renew()
        self._looked: _Looked | None = None  # who was asked about last, and nothing has changed since
        self._noted: list[tuple[IntArray, ...]] = []  # kinds, drafted, right
        self._noted_one: list[tuple[int, ...]] = []
        self._settled = 0

    def start(self, row: int, task: int) -> None:
        """A request begins in `row`."""
        self._looked = None
        self._streak[row] = 0
        self._first_kind[row] = task * (_LONGEST + 1)

    def gains_of_kinds(self) -> FloatArray:
        """[kinds, depth]: how many tokens of a draft of 1, 2, ... tokens are expected to be kept, by kind of row; the

        same array until something was learned.
        """
        # What was noted is learned once it is an eighth of what is known: estimates move slowly, and are read often.
        if len(self._noted) + len(self._noted_one) > self._settled // 8:
            self._learn()
        return self.table

    def kinds(self, rows: IntArray) -> IntArray:
        """Of which kind each of these rows is now [B]."""
        return self._look(rows).kinds

    def kind(self, row: int) -> int:
        """`kinds` of one row, quicker."""
        return int(self._first_kind.item(row) + self._streak.item(row))

    def gains_of_one(self, row: int) -> list[float]:
        """`gains_of_kinds` of one row by what has been learned, without learning what was noted."""
        gains: list[float] = self.table[self.kind(row)].tolist()
        return gains

    def observe(self, rows: IntArray, drafted: IntArray, right: IntArray) -> None:
        """The lookup proposed so many tokens for these rows, and the first `right` of them were; all [N].

        -1: nobody looked, so whether it would still be right is not known.
        """
        looked = self._looked
        if looked is None or looked.rows is not rows:
            looked = self._look(rows)
        self._looked = None
        if drafted.max() > 0:
            self._noted.append((looked.kinds, drafted, right))
            self._bound()
        going = right == drafted
        going &= drafted >= 0
        streaks = looked.streaks + drafted
        self._streak[rows] = np.minimum(streaks, _LONGEST, out=streaks) * going

    def observe_one(self, row: int, drafted: int, right: int) -> None:
        """`observe` for one row, quicker."""
        if drafted > 0:
            streak = self._streak.item(row)
            self._noted_one.append((self._first_kind.item(row) + streak, drafted, right))
            self._streak[row] = min(streak + right, _LONGEST) if right == drafted else 0
            self._bound()
        elif drafted < 0:
            self._streak[row] = 0

    def learned(self) -> FloatArray:
        """Counts of all traffic and of each task, [1 + tasks, tried and right, streaks]."""
        self._learn()
        counts: FloatArray = self._counts.copy()
        return counts

    def restore(self, learned: FloatArray) -> None:
        """Go on from what `learned` gave."""
        self._counts = learned.copy()
        self._renew()

    def _look(self, rows: IntArray) -> _Looked:
        """What is known of these rows; who is asked about in a round is told of in the same."""
        streaks = self._streak.take(rows)
        kinds = self._first_kind.take(rows)
        kinds += streaks
        looked = self._looked = _Looked(rows, kinds, streaks)
        return looked

    def _bound(self) -> None:
        """Estimates may not be asked for in a long while, as when speculation is switched off."""
        if len(self._noted) + len(self._noted_one) >= _MOST_NOTED:
            self._learn()

    def _learn(self) -> None:
        lots = len(self._noted) + len(self._noted_one)
        if not lots:
            return
        self._settled = min(self._settled + lots, 512)
        if self._noted_one:
            self._noted.append(tuple(np.array(self._noted_one, dtype=np.int64).T))
            self._noted_one.clear()
        kinds, drafted, right = (np.concatenate(part) for part in zip(*self._noted, strict=True))
        self._noted.clear()
        tasks, streaks = np.divmod(kinds, _LONGEST + 1)
        tried = np.maximum(np.minimum(right + 1, drafted), 0)  # what comes after a wrong token is not known to be wrong
        which = np.repeat(np.arange(len(tried)), tried)
        place = np.arange(len(which)) - np.repeat(np.cumsum(tried) - tried, tried)
        # What was emitted may be one token longer than any draft.
        state = self._state[np.minimum(streaks[which] + place, len(self._state) - 1)]
        good = place < right[which]
        levels, states = len(self._counts), len(_PRIOR)
        key = (1 + tasks[which]) * states + state
        new = np.stack([np.bincount(key, weights, levels * states) for weights in (None, good)])
        new = new.reshape(2, levels, states).swapaxes(0, 1)
        new[0] = new.sum(axis=0)
        self._counts = self._counts * _KEPT ** new[:, :1].sum(axis=2, keepdims=True) + new
        self._renew()

    def _renew(self) -> None:
        """What is expected of each kind of row, [tasks * streaks, depth]."""
        tried, right = self._counts[0]
        everywhere = (_PRIOR_WEIGHT * _PRIOR + right) / (_PRIOR_WEIGHT + tried)
        rates = (_PULL * everywhere + self._counts[1:, 1]) / (_PULL + self._counts[1:, 0])
        gains = np.cumsum(np.cumprod(rates[:, self._ahead], axis=2), axis=2)
        tasks, streaks, depth = gains.shape
        self.table: FloatArray = gains.reshape(tasks * streaks, depth)

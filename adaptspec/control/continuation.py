"""How far drafts go once they are allowed to: stop rules cut them, lookups end.

Knows counts; it decides nothing.
"""

from __future__ import annotations

import numpy as np

from adaptspec.types import FloatArray, IntArray


class Continuation:
    """How often a draft goes on: P(position j is drafted | j - 1 was, and the depth allowed it), in decayed counts.

    Short of 1 where a stop rule cuts drafts, or a lookup finds no match. Two rates: among all drafts, which says
    what drafting costs, and among those still accepted, which says what it earns.
    """

    def __init__(self, depth: int, discount: float = 0.995, weight: float = 4.0) -> None:
        self._discount = discount
        self._weight = weight
        self._allowed: FloatArray = np.zeros((2, depth))
        self._went: FloatArray = np.zeros((2, depth))
        self._rates: FloatArray | None = None

    def observe(self, depths: IntArray, drafted: IntArray, accepted: IntArray) -> None:
        """Note rounds of N rows: depth decided (0: says nothing), tokens drafted and accepted, all [N]."""
        fade = self._discount ** int(np.count_nonzero(depths))
        drafted = drafted * (depths > 0)
        # Position j (from 0) was allowed where j < depth and j <= drafted, drafted where j < drafted.
        allowed = np.minimum(depths, drafted + 1)
        alive = np.minimum(allowed, accepted + 1)
        self._allowed = self._allowed * fade + self._beyond(allowed, alive)
        self._went = self._went * fade + self._beyond(drafted, np.minimum(drafted, accepted + 1))
        self._rates = None

    def _beyond(self, all_: IntArray, alive: IntArray) -> FloatArray:
        """How many of each are above 0, 1, ... depth - 1: [2, depth]."""
        size = self._allowed.shape[1] + 1
        ends = np.array([np.bincount(all_, minlength=size), np.bincount(alive, minlength=size)])
        beyond: FloatArray = np.cumsum(ends[:, :0:-1], axis=1, dtype=np.float64)[:, ::-1]
        return beyond

    def learned(self) -> FloatArray:
        """A copy of the counts [2, 2, depth]: allowed and went on, each among all drafts and those still accepted."""
        return np.array([self._allowed, self._went])

    def restore(self, counts: FloatArray) -> None:
        """Go on from counts that `learned` once gave."""
        self._allowed, self._went = counts.copy()
        self._rates = None

    def rates(self) -> tuple[FloatArray, FloatArray]:
        """Two [depth]: P(not stopped before position j | accepted so far), P(position j is drafted)."""
        if self._rates is None:
            each = (self._went + self._weight) / (self._allowed + self._weight)
            self._rates = np.asarray(each.cumprod(axis=1), dtype=np.float64)
        return self._rates[1], self._rates[0]

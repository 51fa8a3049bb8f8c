"""What every arm has earned and spent, in sums that fade: for all traffic, for each task, for each request.

Knows sums; it decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from adaptspec.control.learned import sums
from adaptspec.types import BoolArray, FloatArray, IntArray

# Rounds n, earned e, spent s, and their second moments: what a ratio of sums and its error are made of.
N, EARNED, SPENT, EARNED2, CROSS, SPENT2 = range(6)
# A window is so many segments: the oldest is dropped as a whole.
_SEGMENTS = 8
# A lot of at least so many rounds is a surprise if it lies so many standard errors off, beyond a drift that is normal.
_LOT, _ERRORS, _DRIFT = 4.0, 3.5, 0.1
# What was seen before a surprise counts so little from then on.
_KEPT = 0.2


@dataclass(frozen=True)
class Memory:
    """How long rounds are remembered: `discount` per round of a context, or the last `window` of them."""

    discount: float = 0.993
    window: int | None = None


@dataclass(frozen=True)
class Lot:
    """What G contexts, ascending, saw of K arms since the last lot: rounds, and sums over them [G, K, 6]."""

    contexts: IntArray
    buckets: IntArray
    rounds: FloatArray
    sums: FloatArray

    def since(self, first: int) -> Lot:
        """That of contexts from number `first` on, which is 0 there."""
        part = slice(int(np.searchsorted(self.contexts, first)), None)
        return Lot(self.contexts[part] - first, self.buckets[part], self.rounds[part], self.sums[part])


def lot_of(seen: FloatArray, number: IntArray, contexts: IntArray, buckets: IntArray) -> Lot:
    """Sum up row-rounds: `seen` [N, K, 3] (1 or 0, earned, spent), of round `number` and bucket, both [N], for each of

    their contexts [levels, N]. Rows of one context in one round count as a single observation, their mean: they share
    much of what happened, and the clock of a context runs in rounds, however many rows it has.
    """
    place = contexts * (1 + int(buckets.max())) + buckets
    key = (place * (1 + int(number.max())) + number).ravel()
    order = key.argsort(kind="stable")
    starts = _starts(key[order])
    first, row = order[starts], order % len(seen)
    told = np.add.reduceat(seen.take(row, axis=0), starts, axis=0)
    count = np.maximum(told[..., 0], 1.0)
    moments = np.empty((*count.shape, 6))
    moments[..., N] = told[..., 0] > 0
    earned = np.divide(told[..., 1], count, out=moments[..., EARNED])
    spent = np.divide(told[..., 2], count, out=moments[..., SPENT])
    np.multiply(earned, earned, out=moments[..., EARNED2])
    np.multiply(earned, spent, out=moments[..., CROSS])
    np.multiply(spent, spent, out=moments[..., SPENT2])
    starts = _starts(place.ravel()[first])
    rounds = np.empty(len(starts))
    rounds[:-1] = starts[1:] - starts[:-1]
    rounds[-1] = len(first) - starts[-1]
    which = first[starts]
    return Lot(contexts.ravel()[which], buckets[which % len(seen)], rounds, np.add.reduceat(moments, starts, axis=0))


def _starts(values: IntArray) -> IntArray:
    """Where a run of equal values begins."""
    new = np.empty(len(values), dtype=np.bool_)
    new[0] = True
    np.not_equal(values[1:], values[:-1], out=new[1:])
    return new.nonzero()[0]


def _surprising(known: FloatArray, new: FloatArray) -> BoolArray:
    """[G] whether any arm's new sums [G, K, 6] are too far from what its known ones say."""
    rounds, count = known[..., N], new[..., N]
    ratio = known[..., EARNED] / np.maximum(known[..., SPENT], 1e-9)
    expected = ratio * new[..., SPENT]
    squares = known[..., EARNED2] - 2.0 * ratio * known[..., CROSS] + ratio**2 * known[..., SPENT2]
    # One round's worth of the spread that even a single token has: nothing is that certain after a few rounds.
    variance = (np.maximum(squares, 0.0) + 0.25) / (rounds + 1.0) * count + (_DRIFT * expected) ** 2
    far = (new[..., EARNED] - expected) ** 2 > _ERRORS**2 * variance
    return np.asarray((far & (np.minimum(rounds, count) >= _LOT)).any(axis=-1))


class Ledger:
    """Sums [contexts, buckets, K, 6], all contexts alike."""

    def __init__(self, contexts: int, buckets: int, arms: int, memory: Memory) -> None:
        self._memory = memory
        segments = 1 if memory.window is None else _SEGMENTS
        self._sums: FloatArray = np.zeros((segments, contexts, buckets, arms, 6))
        self._age: FloatArray = np.zeros((contexts, buckets))
        self._segment: IntArray = np.zeros((contexts, buckets), dtype=np.int64)

    def add(self, lot: Lot) -> BoolArray:
        """Take in a lot. What was seen before fades by its rounds, and nearly all at once where the lot contradicts it:

        [G] where it does. A slow drift is left to fading; a sudden change should not take as long to be believed.
        """
        at = lot.contexts, lot.buckets
        known = self.read(*at)
        surprising = _surprising(known, lot.sums)
        if self._memory.window is None:
            if surprising.any():
                known[surprising] *= _KEPT
            fade = self._memory.discount**lot.rounds
            self._sums[0][at] = known * fade[:, None, None] + lot.sums
            return surprising
        if surprising.any():
            self._sums[:, lot.contexts[surprising], lot.buckets[surprising]] *= _KEPT
        self._age[at] += lot.rounds
        full = self._age[at] > self._memory.window / _SEGMENTS
        self._segment[at] = np.where(full, (self._segment[at] + 1) % _SEGMENTS, self._segment[at])
        self._age[at] = np.where(full, lot.rounds, self._age[at])
        here = (self._segment[at], lot.contexts, lot.buckets)
        self._sums[here] = np.where(full[:, None, None], 0.0, self._sums[here]) + lot.sums
        return surprising

    def read(self, contexts: IntArray, buckets: IntArray | int) -> FloatArray:
        """[..., K, 6] of some contexts [...]; a copy."""
        one = len(self._sums) == 1
        found: FloatArray = self._sums[0, contexts, buckets] if one else self._sums[:, contexts, buckets].sum(axis=0)
        return found

    def forget(self, context: int) -> None:
        """Another request has come."""
        self._sums[:, context] = 0.0
        self._age[context] = 0.0

    def learned(self, part: slice) -> FloatArray:
        """A copy of the sums [contexts, buckets, K, 6] of some contexts."""
        found: FloatArray = self._sums[:, part].sum(axis=0)
        return found

    def restore(self, part: slice, known: FloatArray) -> None:
        """Go on from sums that `learned` once gave."""
        self._sums[:, part] = 0.0
        self._sums[0, part] = known
        self._age[part] = self._segment[part] = 0


class Ledgers:
    """A ledger from all traffic down to the level that arms are chosen at. Each level leans on the one above.

    A context is read as its own sums plus those of the level above, scaled down to at most `weight` rounds of each arm:
    a new request begins with what its task is like, and soon goes by its own record.
    """

    def __init__(self, sizes: Mapping[str, int], buckets: int, arms: int, memory: Memory, weight: float) -> None:
        """`sizes`: contexts of each level by name, all traffic first. They are numbered from one level to the next."""
        self._ledger = Ledger(sum(sizes.values()), buckets, arms, memory)
        self._shape = buckets, arms, 6
        self._weight = weight
        ends = np.cumsum(list(sizes.values())).tolist()
        # Those of the levels that outlive requests.
        self._kept = {n: slice(e - sizes[n], e) for n, e in zip(sizes, ends, strict=True) if n != "request"}

    def add(self, lot: Lot) -> BoolArray:
        """A lot of contexts of all levels; where it was a surprise."""
        return self._ledger.add(lot)

    def read(self, path: IntArray, bucket: int) -> FloatArray:
        """[m, K, 6] of m contexts; `path` [levels, m] are their numbers at each level."""
        levels = self._ledger.read(path, bucket)
        found: FloatArray = levels[0]
        for own in levels[1:]:
            found = own + np.minimum(1.0, self._weight / np.maximum(found[..., :1], 1e-9)) * found
        return found

    def forget(self, context: int) -> None:
        """A context begins anew."""
        self._ledger.forget(context)

    def learned(self) -> dict[str, FloatArray]:
        """Sums of the levels that outlive requests."""
        return {f"sums.{name}": self._ledger.learned(part) for name, part in self._kept.items()}

    def restore(self, learned: Mapping[str, FloatArray]) -> None:
        """See `Chooser.restore`."""
        known = {
            name: sums(learned, f"sums.{name}", (part.stop - part.start, *self._shape))
            for name, part in self._kept.items()
        }
        for name, part in self._kept.items():
            self._ledger.restore(part, known[name])

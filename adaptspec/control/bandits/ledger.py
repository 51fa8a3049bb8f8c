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
    """What G contexts saw of K arms since the last lot: rounds, and sums over them [G, K, 6]."""

    contexts: IntArray
    buckets: IntArray
    rounds: FloatArray
    sums: FloatArray


def lot_of(seen: FloatArray, number: IntArray, contexts: IntArray, buckets: IntArray) -> Lot:
    """Sum up row-rounds: `seen` [N, K, 3] (1 or 0, earned, spent), of round `number`, context and bucket, all [N].

    Rows of one context in one round count as a single observation, their mean: they share much of what happened, and
    the clock of a context runs in rounds, however many rows it has.
    """
    key = number * (1 + int(contexts.max())) + contexts
    order = np.argsort(key, kind="stable")
    starts = np.flatnonzero(np.diff(key[order], prepend=-1))
    if len(starts) < len(order):
        seen = np.add.reduceat(seen[order], starts, axis=0)
        first = order[starts]
    else:
        first = order
        seen = seen[order]
    count = np.maximum(seen[..., :1], 1.0)
    earned, spent = seen[..., 1] / count[..., 0], seen[..., 2] / count[..., 0]
    moments = np.stack((seen[..., 0] > 0, earned, spent, earned**2, earned * spent, spent**2), axis=-1)
    place = contexts[first] * (1 + int(buckets.max())) + buckets[first]
    order = np.argsort(place, kind="stable")
    starts = np.flatnonzero(np.diff(place[order], prepend=-1))
    rounds = np.diff(np.append(starts, len(order))).astype(np.float64)
    which = first[order[starts]]
    return Lot(contexts[which], buckets[which], rounds, np.add.reduceat(moments[order], starts, axis=0))


def _surprising(known: FloatArray, new: FloatArray) -> BoolArray:
    """[G] whether any arm's new sums [G, K, 6] are too far from what its known ones say."""
    rounds, count = known[..., N], new[..., N]
    ratio = known[..., EARNED] / np.maximum(known[..., SPENT], 1e-9)
    expected = ratio * new[..., SPENT]
    squares = known[..., EARNED2] - 2.0 * ratio * known[..., CROSS] + ratio**2 * known[..., SPENT2]
    # One round's worth of the spread that even a single token has: nothing is that certain after a few rounds.
    variance = (np.maximum(squares, 0.0) + 0.25) / (rounds + 1.0) * count + (_DRIFT * expected) ** 2
    far = (new[..., EARNED] - expected) ** 2 > _ERRORS**2 * variance
    found: BoolArray = np.any(far & (rounds >= _LOT) & (count >= _LOT), axis=-1)
    return found


class Ledger:
    """Sums [contexts, buckets, K, 6] of one level, all contexts alike."""

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
        surprising = _surprising(self._sums[:, at[0], at[1]].sum(axis=0), lot.sums)
        if surprising.any():
            self._sums[:, lot.contexts[surprising], lot.buckets[surprising]] *= _KEPT
        if self._memory.window is None:
            fade = self._memory.discount**lot.rounds
            self._sums[0][at] = self._sums[0][at] * fade[:, None, None] + lot.sums
            return surprising
        self._age[at] += lot.rounds
        full = self._age[at] > self._memory.window / _SEGMENTS
        self._segment[at] = np.where(full, (self._segment[at] + 1) % _SEGMENTS, self._segment[at])
        self._age[at] = np.where(full, lot.rounds, self._age[at])
        here = (self._segment[at], lot.contexts, lot.buckets)
        self._sums[here] = np.where(full[:, None, None], 0.0, self._sums[here]) + lot.sums
        return surprising

    def read(self, contexts: IntArray, bucket: int) -> FloatArray:
        """[m, K, 6] of some contexts; a copy."""
        found: FloatArray = self._sums[:, contexts, bucket].sum(axis=0)
        return found

    def forget(self, context: int) -> None:
        """Another request has come."""
        self._sums[:, context] = 0.0
        self._age[context] = 0.0

    def learned(self) -> FloatArray:
        """A copy of the sums [contexts, buckets, K, 6]."""
        found: FloatArray = self._sums.sum(axis=0)
        return found

    def check(self, learned: Mapping[str, FloatArray], name: str) -> FloatArray:
        """What `learned` holds for this ledger.

        Raises:
            StateError: missing, of other arms, or not sums.
        """
        return sums(learned, name, self._sums.shape[1:])

    def restore(self, known: FloatArray) -> None:
        """Go on from sums that `learned` once gave."""
        self._sums[:] = 0.0
        self._sums[0] = known
        self._age[:] = self._segment[:] = 0


class Ledgers:
    """Ledgers from all traffic down to the level that arms are chosen at. Each level leans on the one above.

    A context is read as its own sums plus those of the level above, scaled down to at most `weight` rounds of each arm:
    a new request begins with what its task is like, and soon goes by its own record.
    """

    def __init__(self, sizes: Mapping[str, int], buckets: int, arms: int, memory: Memory, weight: float) -> None:
        """`sizes`: contexts of each level by name, all traffic first."""
        self._levels = {name: Ledger(size, buckets, arms, memory) for name, size in sizes.items()}
        self._weight = weight

    def add(self, lots: Mapping[str, Lot]) -> dict[str, BoolArray]:
        """A lot for each level; where each of them was a surprise."""
        return {name: self._levels[name].add(lot) for name, lot in lots.items()}

    def read(self, path: Mapping[str, IntArray], bucket: int) -> FloatArray:
        """[m, K, 6] of m contexts; `path` names their place at each level."""
        found: FloatArray | None = None
        for name, ledger in self._levels.items():
            own = ledger.read(path[name], bucket)
            if found is not None:
                own += np.minimum(1.0, self._weight / np.maximum(found[..., :1], 1e-9)) * found
            found = own
        assert found is not None, "there is always the level of all traffic"
        return found

    def forget(self, level: str, context: int) -> None:
        """The context of a level begins anew."""
        self._levels[level].forget(context)

    def learned(self) -> dict[str, FloatArray]:
        """Sums of the levels that outlive requests."""
        return {f"sums.{name}": ledger.learned() for name, ledger in self._levels.items() if name != "request"}

    def restore(self, learned: Mapping[str, FloatArray]) -> None:
        """See `Chooser.restore`."""
        kept = {name: ledger for name, ledger in self._levels.items() if name != "request"}
        known = {name: ledger.check(learned, f"sums.{name}") for name, ledger in kept.items()}
        for name, ledger in kept.items():
            ledger.restore(known[name])

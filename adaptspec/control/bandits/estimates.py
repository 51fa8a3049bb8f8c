"""Ratios of sums and how sure they are; and which of uncertain arms may be tried at all.

Knows sums, costs and how arms are nested; it does not know how an algorithm weighs them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from adaptspec.control.bandits.arms import Arms
from adaptspec.control.bandits.ledger import CROSS, EARNED, EARNED2, SPENT, SPENT2, N
from adaptspec.types import BoolArray, FloatArray, IntArray

# A deeper arm is entered from the one below it, once that was seen this often (in fading rounds).
_SEEN_ENOUGH = 0.5
# Nothing seen: acceptance of each token in percent, believed like one round; and how much tokens per round vary, over
# the root of the depth.
_ACCEPTANCE, _SPREAD = 60, 0.5


@dataclass(frozen=True)
class Estimates:
    """For m contexts and K arms: rounds seen, earned / spent, and one standard error of it.

    Off is known: 1, without error; `plain` [m] are the rounds at it. `spread` is the standard deviation of a single
    round's ratio, `hoped` the ratio believed beforehand.
    """

    seen: FloatArray
    ratio: FloatArray
    error: FloatArray
    spread: FloatArray
    hoped: FloatArray
    plain: FloatArray


def estimate(sums: FloatArray, arms: Arms, costs: FloatArray, entry: FloatArray) -> Estimates:
    """From sums [m, K, 6]. `costs` [K] and `entry` [m, K] are what an arm spends per round, and to catch up at first.

    The ratio is sum(earned) / sum(spent), its error from the residuals earned - ratio x spent (the delta method), both
    with one round of prior belief added (`_hoped`). `entry` lowers the ratio of arms whose drafter lags.
    """
    believed = np.where(arms.opaque, 1.0, costs)
    hoped = _hoped(sums, arms)
    rounds = sums[..., N] + 1.0
    spent = sums[..., SPENT] + believed
    ratio = (sums[..., EARNED] + hoped) / spent
    squares = sums[..., EARNED2] - 2.0 * ratio * sums[..., CROSS] + ratio**2 * sums[..., SPENT2]
    prior = _SPREAD**2 * np.where(arms.opaque, 1.0, arms.depths)
    each = spent / rounds
    spread = np.sqrt((np.maximum(squares, 0.0) + prior) / rounds) / each
    error = spread / np.sqrt(rounds)
    later = each / (each + entry)
    seen, plain = sums[..., N].copy(), np.zeros(len(sums))
    if arms.off is not None:
        plain = sums[:, arms.off, N]
        seen[:, arms.off], ratio[:, arms.off], error[:, arms.off], spread[:, arms.off] = np.inf, 1.0, 0.0, 0.0
    return Estimates(seen, ratio * later, error * later, spread, hoped / believed, plain)


def _hoped(sums: FloatArray, arms: Arms) -> FloatArray:
    """[m, K] tokens per round that are believed of an arm before it is seen: as if every token were accepted alike, by

    the acceptance that explains what the next shallower arm brought. A policy is believed to be as good as off.
    """
    hoped = np.ones(sums.shape[:2])
    for arm in arms.ladder:
        below = int(arms.below[arm])
        if below < 0:
            hoped[:, arm] = arms.tokens[arm, _ACCEPTANCE]
        else:
            brought = (sums[:, below, EARNED] + hoped[:, below]) / (sums[:, below, N] + 1.0)
            hoped[:, arm] = np.interp(brought, arms.tokens[below], arms.tokens[arm])
    return hoped


def bounded(scores: FloatArray, seen: FloatArray, arms: Arms, costs: FloatArray) -> FloatArray:
    """Optimistic scores [..., m, K] held to what is possible.

    An arm of depth d emits at most d + 1 tokens. And as survival falls with the position, d tokens bring at most
    d / c times what the first c bring: what is known of a shallower arm bounds the deeper ones of its family.
    """
    bounds, most = scores.copy(), np.ones(scores.shape)
    for arm in arms.ladder:
        depth, below = float(arms.depths[arm]), int(arms.below[arm])
        most[..., arm] = depth + 1.0
        if below >= 0:
            shown = np.maximum(bounds[..., below] * costs[below], 1.0)
            known = np.where(seen[..., below] >= _SEEN_ENOUGH, shown, most[..., below])
            most[..., arm] = 1.0 + depth / arms.depths[below] * (known - 1.0)
        # A stop rule spends less than the whole depth costs: no bound from above for what it may earn per second.
        if arms.stops[arm] is None:
            bounds[..., arm] = np.minimum(bounds[..., arm], most[..., arm] / costs[arm])
    return np.asarray(bounds, dtype=np.float64)


def enterable(seen: FloatArray, arms: Arms, limits: IntArray) -> BoolArray:
    """[m, K] which arms may be played: within the limits [m] as far as there are such, and not two steps up at once."""
    fits = (arms.depths <= limits[:, None]) | arms.opaque
    fits |= ~fits.any(axis=1, keepdims=True)
    from_below: BoolArray = fits & ((arms.below < 0) | (seen[:, arms.below] >= _SEEN_ENOUGH))
    return np.where(from_below.any(axis=1, keepdims=True), from_below, fits)

"""Importance-weighted goodput: a ratio of sums over rounds that another policy decided by chance, with bounds."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from adaptspec.types import BoolArray, FloatArray, IntArray

# Decisions that follow each other share draws and requests; so many stretches of them are taken as independent.
BLOCKS = 40


@dataclass(frozen=True)
class Interval:
    """A value and where it lies with the probability that was asked for."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class WeightedGoodput:
    """What `weighted_goodput` finds. `effective` is the number of decisions that would say as much with equal
    weights; `blocks` the stretches of rounds that have any weight; `clipped` the share of weight that was cut off.
    """

    goodput: Interval  # tokens per second
    over_logged: Interval  # over the goodput of the rounds as they were
    logged: float
    matched: int
    effective: float
    blocks: int
    clipped: float


def weighted_goodput(
    tokens: FloatArray,
    seconds: FloatArray,
    propensity: FloatArray,
    matched: BoolArray,
    decisions: IntArray,
    *,
    clip: float = 50.0,
    level: float = 0.95,
    blocks: int = BLOCKS,
) -> WeightedGoodput:
    """Estimate, over n rounds in order of time [n], where neighbours of one number in `decisions` share a decision:

        R = sum(w tokens) / sum(w seconds),   w = matched * min(1 / propensity, clip).

    Goodput is a ratio of sums, so each sum is weighted by itself and R is their ratio, which needs no other
    normalisation: it is the self-normalised estimate. Weights are per decision: a round counts by the chance of what
    was done in it, not by that of all rounds before, whose product would leave nothing to count. `clip` bounds the
    variance at the price of a bias towards what was likely; without clipped weights R is consistent.

    Interval: delta method over `blocks` stretches b of whole decisions, since rounds of one share its luck, and those
    near each other some of it,

        var R = B / (B - 1) * sum_b(z_b^2) / sum(w seconds)^2,   z_b = sum over b of w (tokens - R seconds),

    with Student's t of B - 1 degrees of freedom, B the number of stretches that have weight. The ratio over the logged
    goodput is done in the same way on the difference of both relative errors, so that luck which both share cancels.

    Sources: Horvitz and Thompson 1952; Swaminathan and Joachims 2015, "The Self-Normalized Estimator for Counterfactual
    Learning"; Ionides 2008, "Truncated Importance Sampling"; Cochran 1977, ch. 6 (ratio estimates). Raises ValueError:
    nothing matches, or fewer than two stretches do.
    """
    weights = np.where(matched, np.minimum(1.0 / propensity, clip), 0.0)
    spent, logged = float(weights @ seconds), float(tokens.sum() / seconds.sum())
    begins = np.flatnonzero(np.diff(decisions, prepend=decisions[:1] - 1))
    edges = begins[np.linspace(0, len(begins), min(blocks, len(begins)) + 1).astype(np.int64)[:-1]]
    held = np.add.reduceat(weights, edges) > 0.0 if len(edges) else np.zeros(0, dtype=np.bool_)
    count = int(held.sum())
    if count < 2:
        raise ValueError("fewer than two stretches of rounds have weight")
    ratio = float(weights @ tokens) / spent
    own = np.add.reduceat(weights * (tokens - ratio * seconds), edges) / spent / ratio
    its = np.add.reduceat(tokens - logged * seconds, edges) / float(seconds.sum()) / logged
    width = float(stdtrit(count - 1, 0.5 + level / 2.0))
    full = np.where(matched, 1.0 / propensity, 0.0).sum()
    return WeightedGoodput(
        _interval(ratio, own, width, count),
        _interval(ratio / logged, own - its, width, count),
        logged,
        int(matched.sum()),
        float(weights.sum() ** 2 / (np.add.reduceat(weights, begins) ** 2).sum()),
        count,
        float(1.0 - weights.sum() / full),
    )


def _interval(value: float, errors: FloatArray, width: float, count: int) -> Interval:
    """`errors` are relative, by stretch of rounds."""
    spread = width * value * math.sqrt(count / (count - 1) * float(errors @ errors))
    return Interval(value, max(0.0, value - spread), value + spread)

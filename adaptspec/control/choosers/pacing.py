"""Depths that keep every row's pace: which rows must draft how deep so that none is slower than it may be.

Pure arithmetic on a market and on seconds allowed; knows neither clocks nor what becomes of the plan.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from adaptspec.types import FloatArray, IntArray


@dataclass(frozen=True)
class Market:
    """What tokens bring and cost this round, for B rows and D positions.

    `gains` [B, D]: tokens that drafting position j is expected to add (survival); `sizes` [B, D]: how likely position
    j is drafted at all once allowed (1 without a stop rule). Times are seconds.
    """

    gains: FloatArray
    sizes: FloatArray
    tiers: IntArray  # depths allowed beside 0, ascending
    limits: IntArray  # [B]
    entry: FloatArray  # [B] for a row to draft at all: catching up
    base_tokens: float  # emitted anyway: one per decoding row
    plain: float  # a round without drafts
    overhead: float  # of a round with drafts, beside draft steps and what verifying them adds
    per_step: float
    per_row: float
    verify: FloatArray  # [B * D + 1] what verifying n more tokens adds


@dataclass(frozen=True)
class PacePlan:
    """Depths [B], and the worst row's share of its pace: at least 1 means that every row keeps it."""

    depths: IntArray
    worst: float


def worst_pace(market: Market, depths: IntArray, allowed: FloatArray) -> FloatArray:
    """The slowest row's pace under each of N batches of depths [N, B], as a share of what it must be.

    A row emits 1 + its gains in a round of T seconds, all rows the same T, and is to need at most `allowed` [B] seconds
    per token.
    """
    emitted = 1.0 + _upto(market.gains)[np.arange(depths.shape[1]), depths]
    paces: FloatArray = (emitted * allowed).min(axis=1) / seconds_of(market, depths)
    return paces


def seconds_of(market: Market, depths: IntArray) -> FloatArray:
    """T of N batches of depths [N, B], in seconds."""
    tokens = _upto(market.sizes)[np.arange(depths.shape[1]), depths].sum(axis=1)
    steps = _steps(market)[depths.max(axis=1, initial=0)]
    entry = ((depths > 0) * market.entry).sum(axis=1)
    return _seconds(market, tokens, steps, entry)


def keep_pace(market: Market, allowed: FloatArray) -> PacePlan:
    """The least drafting that lets the slowest row be as fast as it must be, or as fast as it can be.

    Rows are raised a tier at a time, always the one that is worst off: the order of emitted tokens x allowed seconds.
    The depths after each step are the cheapest with which no row is worse off than the next to be raised, so the
    first that keep the pace are the least that do (each row's demand grows with T, and T with all depths: the least
    fixed point, as in power control, Yates 1995), and the best of them all is the least violation.
    """
    rows, tiers = len(market.limits), market.tiers
    depths = np.concatenate(([0], tiers))
    levels = (1.0 + _upto(market.gains)[:, depths]) * allowed[:, None]  # [B, K + 1] before each tier, and after all
    open_ = tiers <= market.limits[:, None]
    order = np.argsort(np.where(open_, levels[:, :-1], np.inf).ravel(), kind="stable")[: int(open_.sum())]
    row, tier = np.divmod(order, len(tiers))
    last = levels[np.arange(rows), open_.sum(axis=1)].min()  # a row that cannot be raised further holds all back
    level = np.minimum(np.concatenate((levels[row, tier], [np.inf])), last)
    size = np.diff(_upto(market.sizes)[:, depths], axis=1)[row, tier]
    tokens = np.concatenate(([0.0], np.cumsum(size)))
    entry = np.concatenate(([0.0], np.cumsum(np.where(tier == 0, market.entry[row], 0.0))))
    deepest = np.concatenate(([0], np.maximum.accumulate(tiers[tier])))
    paces = level / _seconds(market, tokens, _steps(market)[deepest], entry)
    kept = paces >= 1.0
    best = int(np.argmax(kept)) if kept.any() else int(np.argmax(paces))
    counts = np.bincount(row[:best], minlength=rows)
    return PacePlan(depths[counts], float(paces[best]))


def _upto(values: FloatArray) -> FloatArray:
    """Sums of [B, D] over the first 0, 1, ... D positions: [B, D + 1]."""
    return np.concatenate((np.zeros((len(values), 1)), np.cumsum(values, axis=1)), axis=1)


def _steps(market: Market) -> FloatArray:
    """Expected draft steps by deepest depth [D + 1]: a step is paid while any row is still drafting."""
    going = np.cumsum(1.0 - np.prod(1.0 - market.sizes, axis=0))
    return np.concatenate(([0.0], going))


def _seconds(market: Market, tokens: FloatArray, steps: FloatArray, entry: FloatArray) -> FloatArray:
    places = np.arange(len(market.verify))
    drafting = market.overhead + market.per_step * steps + market.per_row * tokens + entry
    drafting = drafting + np.interp(tokens, places, market.verify)
    return np.asarray(np.where(tokens > 0.0, drafting, market.plain), dtype=np.float64)

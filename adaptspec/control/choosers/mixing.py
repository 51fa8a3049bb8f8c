"""Which rows of a batch follow the plan for the draft model, which take an offer of the lookup, and which do neither.

Pure arithmetic on expected tokens and seconds; knows neither where they come from nor what becomes of the choice.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from adaptspec.types import BoolArray, FloatArray, IntArray

# What one more verified token may be worth, in tokens: rows are sorted out at each of these prices.
_PRICES = np.array([0.03, 0.08, 0.15, 0.25, 0.4, 0.6, 0.85])


@dataclass(frozen=True)
class RoundPrices:
    """Seconds of a round, and the tokens it emits anyway.

    `plain` is a round without drafts; `overhead` is one with drafts, before any is made or verified; `curve` [N] what
    verifying n tokens more takes beyond that; `start`, `per_step` and `per_row` are the draft model's; `goes_on` [D] how
    likely a row goes on to draft position j.
    """

    base: float
    plain: float
    overhead: float
    curve: FloatArray
    goodput: float  # of the plan without offers
    start: float = 0.0
    per_step: float = 0.0
    per_row: float = 0.0
    goes_on: FloatArray | None = None


@dataclass(frozen=True)
class Bids:
    """What B rows may do. `offers` [B, D]: tokens expected to be kept of a lookup's draft of 1, 2 ... D tokens, -inf

    where it cannot be had; `kept` and `drafted` [B]: tokens that the plan is expected to keep and to draft, 0 where it
    drafts nothing; `deepest` position of the plan; `bound` [B]: rows that must follow the plan.
    """

    offers: FloatArray
    kept: FloatArray
    drafted: FloatArray
    deepest: int
    bound: BoolArray


@dataclass(frozen=True)
class Mix:
    """`taken` [B]: depth of the offer that a row takes, 0 for none; `follows` [B]: rows that draft as planned."""

    taken: IntArray
    follows: BoolArray
    goodput: float


def best_mix(bids: Bids, prices: RoundPrices) -> Mix:
    """Of the ways to sort the rows out at several prices of a verified token, with and without the draft model, the one

    with the highest (base + kept) / T. At a price, a row does what nets it most tokens: given the price of a round's
    time, rows are judged apart, and one of the prices is near the right one. Bound rows follow the plan in any case.
    """
    size = len(bids.kept)
    depths = np.arange(1, bids.offers.shape[1] + 1)
    worth = bids.offers - _PRICES[:, None, None] * depths
    depth = worth.argmax(axis=2)  # [L, B]
    offered = np.take_along_axis(worth, depth[:, :, None], axis=2)[:, :, 0]
    taken = np.where(offered > 0.0, depth + 1, 0)
    follows = np.zeros(taken.shape, dtype=np.bool_)
    if bids.kept.any() or bids.bound.any():
        planned = bids.kept - (_PRICES[:, None] + prices.goodput * prices.per_row) * bids.drafted
        with_plan = (planned > np.maximum(offered, 0.0)) | bids.bound
        with_plan &= bids.drafted > 0.0
        beside = np.where(with_plan | bids.bound, 0, taken)
        if bids.bound.any():
            taken, follows = beside, with_plan
        else:
            taken, follows = np.concatenate((taken, beside)), np.concatenate((follows, with_plan))
    padded = np.concatenate((np.zeros((size, 1)), bids.offers), axis=1)
    gained = np.where(follows, bids.kept, padded[np.arange(size), taken]).sum(axis=1)
    goodput = (prices.base + gained) / _seconds(taken, follows, bids, prices)
    best = int(goodput.argmax())
    return Mix(taken[best], follows[best], float(goodput[best]))


def _seconds(taken: IntArray, follows: BoolArray, bids: Bids, prices: RoundPrices) -> FloatArray:
    """Of rounds, one for each way [W]."""
    drafted, rows = (follows * bids.drafted).sum(axis=1), np.count_nonzero(follows, axis=1)
    tokens = taken.sum(axis=1) + drafted
    seconds = np.where(tokens > 0.0, prices.overhead + _read(prices.curve, tokens), prices.plain)
    if prices.goes_on is not None and rows.any():
        stays = (1.0 - prices.goes_on[: bids.deepest]) ** rows[:, None]
        steps = (1.0 - stays).sum(axis=1)
        seconds = seconds + np.where(rows > 0, prices.start + prices.per_step * steps + prices.per_row * drafted, 0.0)
    return np.asarray(seconds, dtype=np.float64)


def _read(curve: FloatArray, at: FloatArray) -> FloatArray:
    """A curve over 0, 1, 2 ... read at fractions."""
    return np.asarray(np.interp(at, np.arange(len(curve)), curve), dtype=np.float64)

"""Which rows of a batch follow the plan for the draft model, which take an offer of the lookup, and which do neither.

Pure arithmetic on expected tokens and seconds; knows neither where they come from nor what becomes of the choice.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from adaptspec.control.choosers.planning import read_curve
from adaptspec.types import BoolArray, FloatArray, IntArray

# What one more verified token may cost, as a share of what a row's round costs without drafts: rows are sorted out at
# each of these prices.
_PRICES = np.array([0.004, 0.015, 0.04, 0.08, 0.13, 0.2, 0.3, 0.45, 0.8, np.inf])[:, None]


@dataclass(frozen=True)
class RoundPrices:
    """Seconds of a round of `base` rows.

    `plain` is a round without drafts; `overhead` is one with drafts, before any is made or verified; `curve` [N] what
    verifying n tokens more takes beyond that; `start`, `per_step` and `per_row` are the draft model's;
    `goes_on` [D] is how likely a row goes on to draft position j, None where there is no draft model.
    """

    base: float
    plain: float
    overhead: float
    curve: FloatArray
    start: float = 0.0
    per_step: float = 0.0
    per_row: float = 0.0
    goes_on: FloatArray | None = None


@dataclass(frozen=True)
class Bids:
    """What B rows may do. `offers` [B, D]: tokens expected to be kept of a lookup's draft of 1, 2 ... D tokens, below 0

    where it cannot be had; `kept` and `drafted` [B]: tokens that the plan is expected to keep and to draft, 0 where it
    drafts nothing; `deepest` position of the plan; `bound` [B]: rows that must do as planned.
    """

    offers: FloatArray
    kept: FloatArray
    drafted: FloatArray
    deepest: int
    bound: BoolArray


@dataclass(frozen=True)
class Mix:
    """`taken` [B]: depth of the offer that a row takes, 0 for none; `follows` [B]: rows that draft as planned.

    `way`: how it was found, for `mix_again`.
    """

    taken: IntArray
    follows: BoolArray
    goodput: float
    way: Way


@dataclass(frozen=True)
class Way:
    """To sort rows out at a price of a verified token (its place in `_PRICES`), with the plan or without it."""

    price: int
    planned: bool


def best_mix(bids: Bids, prices: RoundPrices) -> Mix:
    """The best of the ways to sort the rows out at several prices of a verified token, with and without the plan.

    Each row has its own text to get through, in easy stretches and hard ones. What counts of a row's round is thus the
    part of a stretch that it settles for what it costs: rows maximise (1 + kept) / (share + own seconds), where the
    share is what the rows of a round split among them (T less what drafted tokens add, over B). A way is scored by the
    sum of the logarithms of these rates. To add up tokens over rows instead would let rows in easy stretches, which
    are soon through, outbid those in hard ones, where each token kept saves a round.

    At a price p of a token, in shares, a row does what makes (1 + kept) / (1 + p x tokens) largest. Bound rows do as
    planned in any case.
    """
    taken, follows = _sorted_out(bids, prices, np.arange(len(_PRICES)))
    ways = [Way(price, planned=True) for price in range(len(_PRICES))]
    if bids.drafted.any() and not bids.bound.any():
        alone, _ = _best_offers(bids, np.arange(len(_PRICES)))
        taken = np.concatenate((taken, alone))
        follows = np.concatenate((follows, np.zeros(alone.shape, dtype=np.bool_)))
        ways += [Way(price, planned=False) for price in range(len(_PRICES))]
    kept = _kept(bids, taken, follows)
    tokens = np.where(follows, bids.drafted, taken)
    seconds, each = _seconds(tokens, follows, bids, prices)
    share = (seconds - each * tokens.sum(axis=1)) / prices.base
    rates = np.log1p(kept) - np.log(share[:, None] + each[:, None] * tokens)
    best = int(rates.sum(axis=1).argmax())
    goodput = float((prices.base + kept[best].sum()) / seconds[best])
    return Mix(taken[best], follows[best], goodput, ways[best])


def mix_again(bids: Bids, prices: RoundPrices, way: Way) -> Mix:
    """The rows of another round sorted out in a way that was best a few rounds ago: a fifth of the time."""
    price = np.array([way.price])
    if way.planned or bids.bound.any():
        taken, follows = _sorted_out(bids, prices, price)
    else:
        taken, _ = _best_offers(bids, price)
        follows = np.zeros(taken.shape, dtype=np.bool_)
    tokens = np.where(follows, bids.drafted, taken)
    seconds, _ = _seconds(tokens, follows, bids, prices)
    goodput = float((prices.base + _kept(bids, taken, follows).sum()) / seconds[0])
    return Mix(taken[0], follows[0], goodput, way)


def _sorted_out(bids: Bids, prices: RoundPrices, which: IntArray) -> tuple[IntArray, BoolArray]:
    """Offers taken and rows that follow the plan, at each of these prices: both [P, B]."""
    taken, worth = _best_offers(bids, which)
    if not bids.drafted.any():
        return np.where(bids.bound, 0, taken), np.zeros(taken.shape, dtype=np.bool_)
    own = prices.per_row * prices.base / prices.plain
    planning = bids.drafted > 0.0
    value = np.log1p(bids.kept) - np.log1p((_PRICES[which] + own) * np.maximum(bids.drafted, 1e-9))
    follows = planning & ((value > worth) | bids.bound)
    follows[which == len(_PRICES) - 1] = planning  # the plan itself: beyond all prices no offer is taken
    return np.where(follows | bids.bound, 0, taken), follows


def _best_offers(bids: Bids, which: IntArray) -> tuple[IntArray, FloatArray]:
    """The depth of each row's offer that is worth most at each of these prices, and what it is worth: both [P, B]."""
    shape = len(which), len(bids.kept)
    taken, worth = np.zeros(shape, dtype=np.int64), np.zeros(shape)
    # Few rows have an offer at a time.
    some = np.flatnonzero(bids.offers.max(axis=1, initial=-np.inf) >= 0.0)
    if len(some):
        offers = bids.offers[some]
        depth = offers.shape[1]
        values = np.where(offers < 0.0, -np.inf, np.log1p(np.maximum(offers, 0.0)))
        values = values - np.log1p(_PRICES[which][:, :, None] * np.arange(1, depth + 1))
        best = values.argmax(axis=2)
        most = np.take_along_axis(values, best[:, :, None], axis=2)[:, :, 0]
        pays = most > 0.0
        taken[:, some], worth[:, some] = np.where(pays, best + 1, 0), np.where(pays, most, 0.0)
    return taken, worth


def _kept(bids: Bids, taken: IntArray, follows: BoolArray) -> FloatArray:
    """Tokens that each row is expected to keep [W, B]."""
    offered = bids.offers[np.arange(len(bids.kept)), taken - 1]
    return np.where(follows, bids.kept, np.where(taken > 0, offered, 0.0))


def _seconds(tokens: FloatArray, follows: BoolArray, bids: Bids, prices: RoundPrices) -> tuple[FloatArray, FloatArray]:
    """Of rounds, one for each way: all in all, and for each token drafted; both [W]."""
    total, drafted, rows = tokens.sum(axis=1), (follows * tokens).sum(axis=1), np.count_nonzero(follows, axis=1)
    own = read_curve(prices.curve, total) + prices.per_row * drafted
    seconds = np.where(total > 0.0, prices.overhead, prices.plain) + own
    if prices.goes_on is not None and rows.any():
        stays = (1.0 - prices.goes_on[: bids.deepest]) ** rows[:, None]
        seconds += np.where(rows > 0, prices.start + prices.per_step * (1.0 - stays).sum(axis=1), 0.0)
    return seconds, own / np.maximum(total, 1e-9)

"""Which rows of a batch follow the plan for the draft model, which take an offer of the lookup, and which do neither.

Pure arithmetic on expected tokens and seconds; knows neither where they come from nor what becomes of the choice.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from adaptspec.control.choosers.offers import OfferTable
from adaptspec.control.choosers.planning import read_curve
from adaptspec.types import BoolArray, Expected, FloatArray, IntArray

# What one more verified token may cost, as a share of what a row's round costs without drafts: rows are sorted out at
# each of these prices. At the last no offer is taken.
PRICES: FloatArray = np.array([0.004, 0.015, 0.04, 0.08, 0.13, 0.2, 0.3, 0.45, 0.8, np.inf])
_LAST = len(PRICES) - 1


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

    @functools.cached_property
    def line(self) -> list[float]:
        """`curve` as a list: reading one number of it costs a tenth."""
        line: list[float] = self.curve.tolist()
        return line

    @functools.cached_property
    def _stays(self) -> list[float]:
        return [] if self.goes_on is None else (1.0 - self.goes_on).tolist()

    def seconds(self, tokens: float, drafted: float, rows: int, deepest: int) -> float:
        """Of a round in which `tokens` are submitted, `drafted` of them by the draft model for `rows` rows."""
        if not tokens:
            return self.plain
        line = self.line
        low = min(int(tokens), len(line) - 1)
        high = min(low + 1, len(line) - 1)
        seconds = self.overhead + line[low] + (tokens - low) * (line[high] - line[low]) + self.per_row * drafted
        if rows:
            seconds += self.start + self.per_step * sum(1.0 - stays**rows for stays in self._stays[:deepest])
        return seconds


@dataclass(frozen=True)
class Bids:
    """What B rows may do: take an offer, follow the plan, or neither.

    Offers are of `offered` [B] tokens and of these `kinds` [B] of the table. `kept` [B]: tokens that the plan is
    expected to keep, 0 where it drafts nothing; `depths` [B] of it, and `sizes` [1 + D]: tokens expected to be drafted
    by depth. `bound` [B]: rows that must do as planned (None: nobody).
    """

    offers: OfferTable
    kinds: IntArray
    offered: IntArray
    kept: FloatArray
    depths: IntArray
    sizes: FloatArray
    bound: BoolArray | None = None

    @functools.cached_property
    def drafted(self) -> FloatArray:
        """Tokens that the plan is expected to draft [B]."""
        drafted: FloatArray = self.sizes.take(self.depths)
        return drafted

    @functools.cached_property
    def deepest(self) -> int:
        """The plan's deepest position."""
        return int(self.depths.max())

    def kept_of(self, taken: IntArray) -> FloatArray:
        """Tokens expected to be kept of offers that are taken so deep; [B], or several ways to take them [W, B]."""
        kept: FloatArray = self.offers.kept[self.offers.places(self.kinds, taken)]
        return kept


@dataclass(frozen=True, eq=False)
class Mix:
    """`taken` [B]: depth of the offer that a row takes, 0 for none; `follows` [B]: rows that draft as planned.

    `way`: how it was found, for `mix_again`. What it is expected to bring is worked out once asked for.
    """

    taken: IntArray
    follows: BoolArray
    way: Way
    bids: Bids
    prices: RoundPrices

    @functools.cached_property
    def kept(self) -> FloatArray:
        """Tokens expected to be kept [B]."""
        return np.where(self.follows, self.bids.kept, self.bids.kept_of(self.taken))

    @functools.cached_property
    def goodput(self) -> float:
        """Tokens per second of the round."""
        drafted = float(self.bids.drafted[self.follows].sum())
        drafting, prices = int(np.count_nonzero(self.follows)), self.prices
        seconds = prices.seconds(float(self.taken.sum()) + drafted, drafted, drafting, self.bids.deepest)
        return (prices.base + float(self.kept.sum())) / seconds


class Hoped(Expected):
    """What a mix is expected to bring, worked out where somebody asks: most rounds are in no journal."""

    _mix: Mix

    def __init__(self, mix: Mix) -> None:
        self.__dict__["_mix"] = mix

    @property
    def goodput(self) -> float:
        """See `Expected`."""
        return self._mix.goodput

    @property
    def accepted(self) -> FloatArray:
        """See `Expected`."""
        return self._mix.kept


@dataclass(frozen=True)
class Way:
    """To sort rows out at a price of a verified token (its place in `PRICES`), with the plan or without it.

    `drafting`: what a token of the plan costs then, drafting and all, in shares.
    """

    price: int
    planned: bool
    drafting: float


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
    places = bids.offers.places(bids.kinds, bids.offered)
    alone, worth = bids.offers.depths[:, places], bids.offers.worth[:, places]
    costs = (PRICES + _own(prices)).tolist()
    ways = [Way(price, planned=True, drafting=cost) for price, cost in enumerate(costs)]
    if not bids.deepest:
        taken, follows = alone, np.zeros(alone.shape, dtype=np.bool_)
    else:
        follows = _value(bids, prices, PRICES[:, None]) > worth
        follows[_LAST] = bids.drafted > 0.0
        if bids.bound is not None:
            follows[:, bids.bound] = bids.drafted[bids.bound] > 0.0
        taken = np.where(follows, 0, alone)
    if bids.bound is not None:
        taken[:, bids.bound] = 0
    elif bids.deepest:
        taken = np.concatenate((taken, alone))
        follows = np.concatenate((follows, np.zeros(alone.shape, dtype=np.bool_)))
        ways += [Way(price, planned=False, drafting=cost) for price, cost in enumerate(costs)]
    kept = np.where(follows, bids.kept, bids.kept_of(taken))
    tokens = np.where(follows, bids.drafted, taken)
    seconds, each = _seconds(tokens, follows, bids, prices)
    share = (seconds - each * tokens.sum(axis=1)) / prices.base
    rates = np.log1p(kept) - np.log(share[:, None] + each[:, None] * tokens)
    best = int(rates.sum(axis=1).argmax())
    return Mix(taken[best], follows[best], ways[best], bids, prices)


def mix_again(bids: Bids, prices: RoundPrices, way: Way) -> Mix:
    """The rows of another round sorted out in a way that was best a few rounds ago: a tenth of the time."""
    offers, price = bids.offers, way.price
    places = offers.places(bids.kinds, bids.offered)
    taken = offers.depths[price].take(places)
    if way.planned or bids.bound is not None:
        if price == _LAST:
            follows = bids.depths > 0
        else:
            # As `_value` says, without its logarithms.
            worth = (1.0 + way.drafting * bids.sizes).take(bids.depths)
            worth *= offers.rates[price].take(places)
            worth -= 1.0
            follows = bids.kept > worth
        if bids.bound is not None:
            follows[bids.bound] = bids.drafted[bids.bound] > 0.0
            taken[bids.bound] = 0
        taken[follows] = 0
    else:
        follows = np.zeros(len(taken), dtype=np.bool_)
        if bids.bound is not None:
            taken[bids.bound] = 0
    return Mix(taken, follows, way, bids, prices)


def _own(prices: RoundPrices) -> float:
    """What a draft token itself takes, in shares."""
    return prices.per_row * prices.base / prices.plain


def _value(bids: Bids, prices: RoundPrices, price: FloatArray | float) -> FloatArray:
    """What following the plan is worth to each row; a little below 0 where it drafts nothing."""
    value: FloatArray = np.log1p(bids.kept) - np.log1p((price + _own(prices)) * np.maximum(bids.drafted, 1e-9))
    return value


def _seconds(tokens: FloatArray, follows: BoolArray, bids: Bids, prices: RoundPrices) -> tuple[FloatArray, FloatArray]:
    """Of rounds, one for each way: all in all, and for each token drafted; both [W]."""
    total, drafted, rows = tokens.sum(axis=1), (follows * tokens).sum(axis=1), np.count_nonzero(follows, axis=1)
    own = read_curve(prices.curve, total) + prices.per_row * drafted
    seconds = np.where(total > 0.0, prices.overhead, prices.plain) + own
    if prices.goes_on is not None and rows.any():
        stays = (1.0 - prices.goes_on[: bids.deepest]) ** rows[:, None]
        seconds += np.where(rows > 0, prices.start + prices.per_step * (1.0 - stays).sum(axis=1), 0.0)
    return seconds, own / np.maximum(total, 1e-9)

"""Sorting rows out between plan and offers: never worse than doing nothing, and no row does what it may not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from adaptspec.control.choosers.mixing import PRICES, Bids, RoundPrices, best_mix, mix_again
from adaptspec.control.choosers.offers import OfferTable
from adaptspec.types import BoolArray, FloatArray

ROWS, DEPTH = 4, 5
RATES = st.lists(st.floats(0.0, 0.99), min_size=ROWS, max_size=ROWS)
COUNTS = st.lists(st.integers(0, DEPTH), min_size=ROWS, max_size=ROWS)
TOKEN = st.floats(1e-6, 2e-3)


@dataclass(frozen=True)
class Offers:
    """Of rows that are right with these rates, and whose lookups found so many tokens."""

    rates: list[float]
    found: list[int]

    @property
    def gains(self) -> FloatArray:
        survival = np.cumprod(np.repeat(np.array(self.rates)[:, None], DEPTH, axis=1), axis=1)
        return np.cumsum(survival, axis=1)


def bids(
    offers: Offers,
    rates: list[float] | None = None,
    depths: list[int] | None = None,
    bound: BoolArray | None = None,
) -> Bids:
    planned = np.zeros(ROWS, dtype=np.int64) if depths is None else np.array(depths)
    kept = planned * np.array([0.0] * ROWS if rates is None else rates)
    table = OfferTable(offers.gains, np.ones(DEPTH, dtype=np.bool_), PRICES)
    tied = bound if bound is not None and bound.any() else None
    return Bids(table, np.arange(ROWS), np.array(offers.found), kept, planned, np.arange(DEPTH + 1.0), tied)


def prices(token: float = 1e-4, step: float = 5e-4, extra: float = 0.0) -> RoundPrices:
    """A round of 4 ms."""
    curve = token * np.arange(ROWS * DEPTH + 1.0)
    goes_on = np.ones(DEPTH)
    return RoundPrices(float(ROWS), 4e-3, 4e-3 + extra, curve, start=extra, per_step=step, goes_on=goes_on)


@settings(max_examples=80, deadline=None)
@given(st.tuples(RATES, RATES), st.tuples(COUNTS, COUNTS), st.lists(st.booleans(), min_size=4, max_size=4), TOKEN)
def test_rows_do_only_what_they_may(
    both: tuple[list[float], list[float]], counts: tuple[list[int], list[int]], tied: list[bool], token: float
) -> None:
    """An offer is taken within what was found, the plan is followed where it drafts, bound rows do as planned."""
    (right, rates), (offered, depths), bound = both, counts, np.array(tied)
    mix = best_mix(bids(Offers(right, offered), rates, depths, bound), prices(token))
    assert (mix.taken[~mix.follows] <= np.array(offered)[~mix.follows]).all()
    assert not (mix.follows & (np.array(depths) == 0)).any()
    assert (mix.follows[bound] == (np.array(depths)[bound] > 0)).all()
    assert not mix.taken[bound].any()
    assert not (mix.taken[mix.follows] > 0).any()


@settings(max_examples=80, deadline=None)
@given(st.tuples(RATES, RATES), st.tuples(COUNTS, COUNTS), st.lists(st.booleans(), min_size=4, max_size=4), TOKEN)
@example(([0.1] * 4, [0.1, 0.0, 0.0, 0.0]), ([1] * 4, [1] * 4), [False] * 4, 1e-6)  # plan and offer alike
def test_the_way_that_was_best_sorts_the_same_rows_out_alike(
    both: tuple[list[float], list[float]], counts: tuple[list[int], list[int]], tied: list[bool], token: float
) -> None:
    """But for rows to which plan and offer are worth the same: one compares rates, the other their logarithms."""
    (right, rates), (offered, depths) = both, counts
    mine = bids(Offers(right, offered), rates, depths, np.array(tied))
    best = best_mix(mine, prices(token))
    again = mix_again(mine, prices(token), best.way)
    price = best.way.price
    offers = mine.offers.rates[price, mine.offers.places(mine.kinds, mine.offered)]
    other = again.follows != best.follows
    if other.any():
        plan = (1.0 + mine.kept) / (1.0 + PRICES[price] * mine.drafted)
        assert np.allclose(plan[other], offers[other], rtol=1e-12)
    assert (again.taken == best.taken)[~other].all()
    assert np.allclose(again.kept[~other], best.kept[~other])
    if not other.any():
        assert np.isclose(again.goodput, best.goodput)


@settings(max_examples=80, deadline=None)
@given(RATES, COUNTS, st.floats(1e-6, 5e-3), st.floats(0.0, 4e-3))
def test_offers_alone_are_taken_only_where_rows_gain(
    right: list[float], offered: list[int], token: float, extra: float
) -> None:
    """All rows of a round are as fast as without offers, by the mean of the logarithms of their rates, or faster."""
    offers = Offers(right, offered)
    mix = best_mix(bids(offers), prices(token, extra=extra))
    if mix.taken.any():
        kept = np.where(mix.taken > 0, offers.gains[np.arange(ROWS), mix.taken - 1], 0.0)
        seconds = 4e-3 + extra + token * float(mix.taken.sum())
        each = (4e-3 + extra) / ROWS + token * mix.taken
        assert np.log1p(kept).sum() - np.log(each).sum() >= -ROWS * np.log(4e-3 / ROWS) - 1e-9
        assert np.isclose(mix.goodput, (ROWS + kept.sum()) / seconds)
    else:
        assert np.isclose(mix.goodput, ROWS / 4e-3)


def test_dear_tokens_leave_offers_alone() -> None:
    offers = Offers([0.9] * ROWS, [DEPTH] * ROWS)
    assert not best_mix(bids(offers), prices(token=5e-3)).taken.any()


def test_sure_offers_replace_the_draft_model() -> None:
    """Where every row has one, no draft step is worth its time."""
    offers = Offers([0.98] * ROWS, [DEPTH] * ROWS)
    mix = best_mix(bids(offers, [0.6] * ROWS, [3] * ROWS), prices())
    assert mix.taken.tolist() == [DEPTH] * ROWS


def test_rows_without_an_offer_follow_the_plan_beside_those_that_take_one() -> None:
    offers = Offers([0.95] * ROWS, [DEPTH, 0, 0, 0])
    mix = best_mix(bids(offers, [0.9] * ROWS, [3] * ROWS), prices(step=1e-4))
    assert mix.taken[0] == DEPTH
    assert mix.follows.tolist() == [False, True, True, True]


def test_offers_that_pay_only_together_are_taken_together() -> None:
    """The first tokens of a round may be dear and the next ones cheap: one row alone could not pay."""
    curve = np.minimum(1.0, np.arange(ROWS * DEPTH + 1.0)) * 3e-3
    steep = RoundPrices(float(ROWS), 4e-3, 4e-3, curve)
    sure = Offers([0.95] * ROWS, [DEPTH] * ROWS)
    alone = Offers([0.4] * ROWS, [2] + [0] * (ROWS - 1))
    assert best_mix(bids(sure), steep).taken.all()
    assert not best_mix(bids(alone), steep).taken.any()

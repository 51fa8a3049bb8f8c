"""Offers looked up are offers computed: the depth worth most of those allowed and offered, none where none pays."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.control.choosers.offers import NetTable, OfferTable

DEPTH = 6
RATES = st.lists(st.floats(0.0, 0.999), min_size=1, max_size=8)
PRICES = st.lists(st.floats(1e-4, 2.0), min_size=1, max_size=4)


@settings(max_examples=100, deadline=None)
@given(RATES, PRICES, st.lists(st.booleans(), min_size=DEPTH, max_size=DEPTH), st.integers(0, DEPTH))
def test_what_is_read_is_the_best_of_what_may_be_done(
    rates: list[float], prices: list[float], allowed: list[bool], offered: int
) -> None:
    kinds = np.arange(len(rates))
    gains = np.cumsum(np.cumprod(np.repeat(np.array(rates)[:, None], DEPTH, axis=1), axis=1), axis=1)
    table = OfferTable(gains, np.array(allowed), np.array(prices))
    places = table.places(kinds, np.full(len(rates), offered))
    for p, price in enumerate(prices):
        depths, worth = table.depths[p, places], table.worth[p, places]
        for kind, depth, value in zip(kinds, depths.tolist(), worth.tolist(), strict=True):
            may = [d for d in range(1, offered + 1) if allowed[d - 1]]
            worths = {d: float(np.log1p(gains[kind, d - 1]) - np.log1p(price * d)) for d in may}
            assert np.isclose(value, max([0.0, *worths.values()]))
            assert (depth in may and np.isclose(worths[depth], value)) if depth else value == 0.0
    taken = table.depths[0, places]
    kept = table.kept[table.places(kinds, taken)]
    expected = np.where(taken > 0, gains[kinds, np.maximum(taken, 1) - 1], 0.0)
    assert (kept == expected).all()


@settings(max_examples=100, deadline=None)
@given(
    RATES,
    st.lists(st.floats(0.0, 1.5), min_size=DEPTH, max_size=DEPTH),
    st.lists(st.booleans(), min_size=DEPTH, max_size=DEPTH),
    st.integers(0, DEPTH),
)
def test_what_is_read_nets_the_most(rates: list[float], steps: list[float], allowed: list[bool], offered: int) -> None:
    """And an offer that nets no more than the least is left."""
    least = 0.05
    kinds, spent = np.arange(len(rates)), np.cumsum(steps)
    gains = np.cumsum(np.cumprod(np.repeat(np.array(rates)[:, None], DEPTH, axis=1), axis=1), axis=1)
    table = NetTable(gains, np.array(allowed), spent, least)
    places = table.places(kinds, np.full(len(rates), offered))
    depths, worth = table.depths[places], table.worth[places]
    for kind, depth, value in zip(kinds, depths.tolist(), worth.tolist(), strict=True):
        nets = {d: gains[kind, d - 1] - spent[d - 1] for d in range(1, offered + 1) if allowed[d - 1]}
        best = max(nets.values(), default=0.0)
        if best > least:
            assert value == nets[depth] == best
        else:
            assert value == 0.0
            assert depth == 0
    kept = table.kept[table.places(kinds, depths)]
    assert (kept == np.where(depths > 0, gains[kinds, np.maximum(depths, 1) - 1], 0.0)).all()

"""Offers looked up are offers computed: the depth worth most of those allowed and offered, none where none pays."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.control.choosers.offers import OfferTable

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

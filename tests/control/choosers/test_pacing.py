"""Depths that keep a pace, against every batch of depths there is."""

from __future__ import annotations

from itertools import product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.control.choosers.pacing import Market, keep_pace, seconds_of, worst_pace


def market(
    acceptance: list[float], limits: list[int], verify: float = 0.1, tiers: tuple[int, ...] = (1, 2, 3)
) -> Market:
    """Rows that accept every token with their own chance; times in units of a plain round's fixed part."""
    rows, deepest = len(acceptance), max(tiers)
    gains = np.cumprod(np.repeat(np.array(acceptance)[:, None], deepest, axis=1), axis=1)
    return Market(
        gains=gains,
        sizes=np.ones((rows, deepest)),
        tiers=np.array(tiers),
        limits=np.array(limits),
        entry=np.zeros(rows),
        base_tokens=float(rows),
        plain=1.2,
        overhead=0.3,
        per_step=0.1,
        per_row=0.02,
        verify=1.0 + verify * np.arange(rows * deepest + 1, dtype=np.float64),
    )


ROWS = st.lists(st.tuples(st.floats(0.0, 0.99), st.integers(0, 3), st.floats(0.2, 3.0)), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(rows=ROWS, verify=st.floats(0.0, 0.4))
def test_nothing_keeps_the_worst_row_faster(rows: list[tuple[float, int, float]], verify: float) -> None:
    """Kept where any depths keep it, and with the least time; where none do, the least violation of all."""
    acceptance, limits, allowed = ([row[k] for row in rows] for k in range(3))
    made = market(acceptance, limits, verify)  # type: ignore[arg-type]
    every = np.array(list(product(*(range(limit + 1) for limit in limits))))  # type: ignore[arg-type]
    paces, seconds = worst_pace(made, every, np.array(allowed)), seconds_of(made, every)
    plan = keep_pace(made, np.array(allowed))
    own = plan.depths[None]
    assert (plan.depths <= np.array(limits)).all()
    assert abs(plan.worst - min(worst_pace(made, own, np.array(allowed))[0], plan.worst)) < 1e-9
    if (paces >= 1.0 + 1e-9).any():
        assert plan.worst >= 1.0 - 1e-9
        assert seconds_of(made, own)[0] <= seconds[paces >= 1.0 + 1e-9].min() + 1e-9
    else:
        assert plan.worst >= paces.max() - 1e-9


def test_only_the_row_in_a_hurry_is_raised() -> None:
    plan = keep_pace(market([0.8, 0.8], [3, 3], 0.01), np.array([0.8, 9.0]))
    assert plan.depths[0] > 0 == plan.depths[1]
    assert plan.worst >= 1.0


def test_tiers_are_kept() -> None:
    plan = keep_pace(market([0.9, 0.9], [3, 2], 0.01, tiers=(1, 3)), np.array([0.55, 0.9]))
    assert set(plan.depths.tolist()) <= {0, 1, 3}

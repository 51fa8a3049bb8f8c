"""The joint plan is the best there is, and its two forms are one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptspec.control.choosers.planning import Market, Plan, best_plan, plan_of_many, plan_of_one


def market(
    acceptance: list[list[float]],
    *,
    limits: list[int] | None = None,
    tiers: list[int] | None = None,
    going: float = 1.0,
    entry: float = 0.0,
    step: float = 2e-4,
    token: float = 1e-4,
) -> Market:
    gains = np.cumprod(np.array(acceptance), axis=1)
    rows, depth = gains.shape
    sizes = np.broadcast_to(going ** np.arange(depth), gains.shape)
    return Market(
        gains=gains,
        sizes=sizes,
        tiers=np.array(tiers if tiers is not None else range(1, depth + 1)),
        limits=np.array(limits if limits is not None else [depth] * rows),
        entry=np.full(rows, entry),
        base_tokens=float(rows),
        plain=1.2e-3 + token * (rows - 1),
        plain_overhead=2e-4,
        overhead=2e-4,
        per_step=step,
        per_row=2e-5,
        verify=1e-3 + token * (rows - 1) + token * np.arange(rows * depth + 1),
    )


def value(m: Market, depths: tuple[int, ...]) -> float:
    """Goodput of given depths, from the definition."""
    if not any(depths):
        return m.base_tokens / m.plain
    gains = sum(m.gains[r, :d].sum() for r, d in enumerate(depths))
    tokens = sum(m.sizes[r, :d].sum() for r, d in enumerate(depths))
    low = int(tokens)
    passes = m.verify[low] + (tokens - low) * (m.verify[min(low + 1, len(m.verify) - 1)] - m.verify[low])
    steps = sum(1 - np.prod(1 - m.sizes[:, j]) for j in range(max(depths)))
    entry = sum(m.entry[r] for r, d in enumerate(depths) if d)
    return float((m.base_tokens + gains) / (m.overhead + entry + m.per_step * steps + m.per_row * tokens + passes))


rates = st.floats(0.01, 0.99)


@given(
    acceptance=st.lists(st.lists(rates, min_size=3, max_size=3), min_size=1, max_size=3), token=st.floats(1e-5, 5e-4)
)
def test_no_other_depths_are_better(acceptance: list[list[float]], token: float) -> None:
    """Against every combination of depths, by brute force."""
    m = market(acceptance, token=token)
    plan = best_plan(m)
    everything = max(value(m, depths) for depths in itertools.product(range(4), repeat=len(acceptance)))
    assert plan.goodput == pytest.approx(everything, rel=1e-9)
    assert value(m, tuple(plan.depths.tolist())) == pytest.approx(plan.goodput, rel=1e-9)


@given(
    acceptance=st.lists(rates, min_size=7, max_size=7),
    limit=st.integers(0, 7),
    tiers=st.sampled_from([[1, 2, 3, 4, 5, 6, 7], [1, 3, 7], [2, 5]]),
    going=st.floats(0.3, 1.0),
    entry=st.floats(0.0, 1e-3),
)
def test_one_row_alone_is_planned_like_many(
    acceptance: list[float], limit: int, tiers: list[int], going: float, entry: float
) -> None:
    """The short path for batch 1 and the vectorised one are the same function."""
    m = market([acceptance], limits=[limit], tiers=tiers, going=going, entry=entry)
    one, many = plan_of_one(m), plan_of_many(m)
    assert one.goodput == pytest.approx(many.goodput)
    assert one.off == many.off
    if not _tie(m, one, many):
        assert one.depths.tolist() == many.depths.tolist()


def _tie(m: Market, one: Plan, many: Plan) -> bool:
    return value(m, (int(one.depths[0]),)) == pytest.approx(value(m, (int(many.depths[0]),)), rel=1e-12)


def test_limits_and_tiers_hold() -> None:
    sure = [[0.99] * 7] * 3
    cheap = {"limits": [7, 2, 0], "step": 1e-6, "token": 1e-6}
    assert best_plan(market(sure, **cheap)).depths.tolist() == [7, 2, 0]
    assert best_plan(market(sure, tiers=[1, 3], **cheap)).depths.tolist() == [3, 1, 0]


def test_off_where_drafting_loses_or_nothing_is_allowed() -> None:
    assert best_plan(market([[0.05] * 3])).depths.tolist() == [0]
    assert best_plan(market([[0.9] * 3], tiers=[])).depths.tolist() == [0]
    assert best_plan(market([[0.9] * 3] * 2, tiers=[])).depths.tolist() == [0, 0]


def test_rows_get_what_their_acceptance_earns() -> None:
    plan = best_plan(market([[0.95] * 5, [0.6] * 5, [0.02] * 5]))
    assert plan.depths[0] > plan.depths[1] > plan.depths[2] == 0


def test_catching_up_is_charged() -> None:
    near = [[0.45] * 3]
    assert best_plan(market(near)).depths[0] > 0
    assert best_plan(market(near, entry=1e-3)).depths[0] == 0

"""The plan of a round against every plan there is, for one row and for batches, with models, lookups and weights."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.arrays import FloatArray
from adaptspec.control.algorithms.planning import Plan, best_plan, drafting_goodput, with_lookups
from adaptspec.control.algorithms.round_terms import LookupTerms, ModelTerms, RoundTerms
from adaptspec.control.cost_model import DraftPrices

DEPTH = 3
RATE = st.floats(0.05, 0.95)


def gains_of(rates: list[float]) -> FloatArray:
    """Tokens kept up to each depth [B, DEPTH + 1] where every token of a row is right as often."""
    rate = np.repeat(np.array(rates)[:, None], DEPTH, axis=1)
    return np.concatenate((np.zeros((len(rate), 1)), np.cumsum(np.cumprod(rate, axis=1), axis=1)), axis=1)


def model(drafter_id: int, rates: list[float], step: float, start: float = 0.0, side_nodes: float = 0.0) -> ModelTerms:
    rows = len(rates)
    return ModelTerms(
        drafter_id=drafter_id,
        acceptance=np.repeat(np.array(rates)[:, None], DEPTH, axis=1),
        gains=gains_of(rates),
        nodes=np.arange(DEPTH + 1.0) * (1.0 + side_nodes),
        prices=DraftPrices(start, step, 0.01, 0.0, 0.0),
        catch_up=np.zeros(rows),
        calibration=np.ones((rows, 10)),
        side_chances=np.ones(1),
        side_nodes=side_nodes,
    )


def lookup(drafter_id: int, rates: list[float], found: list[int]) -> LookupTerms:
    fits = np.arange(DEPTH + 1) <= np.array(found)[:, None]
    return LookupTerms(drafter_id, gains_of(rates), fits, 0.005)


def terms_of(
    models: list[ModelTerms], verify: float, limits: list[int], lookups: tuple[LookupTerms, ...] = ()
) -> RoundTerms:
    """Times in units of a plain round's."""
    rows = len(limits)
    curve = verify * np.arange(rows * DEPTH + 1.0)
    fits = np.arange(DEPTH + 1) <= np.array(limits)[:, None]
    return RoundTerms(rows, 1.0, 0.02, curve, fits, tuple(models), lookups)


def goodput(terms: RoundTerms, depths: tuple[int, ...], drafter: tuple[int, ...], weight: FloatArray) -> float:
    """Of one choice of depths and drafters."""
    models = {one.drafter_id: one for one in terms.models}
    lookups = {one.drafter_id: one for one in terms.lookups}
    kept, tokens, steps, spent = float(weight.sum()), 0, dict.fromkeys(models, 0), 0.0
    for row, (depth, who) in enumerate(zip(depths, drafter, strict=True)):
        if depth:
            kept += weight[row] * {**models, **lookups}[who].gains[row, depth]
            tokens += depth
            spent += models[who].prices.step_row * depth if who in models else lookups[who].seconds
        if who in models:
            steps[who] = max(steps[who], depth)
    passes = sum(one.prices.start * (steps[i] > 0) + one.prices.step * steps[i] for i, one in models.items())
    overhead = terms.overhead * (tokens > 0)
    return kept / (terms.plain + overhead + passes + spent + float(terms.verify[tokens]))


def best_of_all(terms: RoundTerms, weight: FloatArray) -> float:
    rows = len(terms.fits)
    options = []
    for row in range(rows):
        own = [(0, 0)]
        for one in terms.models:
            own += [(depth, one.drafter_id) for depth in range(1, DEPTH + 1) if terms.fits[row, depth]]
        for one in terms.lookups:
            own += [(depth, one.drafter_id) for depth in range(1, DEPTH + 1) if one.fits[row, depth]]
        options.append(own)
    ways = product(*options)
    return max(goodput(terms, *zip(*way, strict=True), weight) for way in ways)  # type: ignore[arg-type]


def check(terms: RoundTerms, plan: Plan, weight: FloatArray, share: float) -> None:
    """A plan is what it says it is, and next to the best."""
    allowed = {one.drafter_id: one.fits for one in terms.lookups}
    for row, (depth, who) in enumerate(zip(plan.depths.tolist(), plan.drafter.tolist(), strict=True)):
        assert allowed.get(who, terms.fits)[row, depth]
    found = goodput(terms, tuple(plan.depths.tolist()), tuple(plan.drafter.tolist()), weight)
    assert plan.goodput == pytest.approx(found)
    assert plan.goodput == pytest.approx((weight.sum() + weight @ plan.kept) / plan.seconds)
    assert found >= share * best_of_all(terms, weight)
    assert found >= float(weight.sum()) / terms.plain - 1e-9


@settings(max_examples=60, deadline=None)
@given(rates=st.lists(RATE, min_size=3, max_size=3), verify=st.floats(0.005, 0.4), found=st.integers(0, 3))
def test_a_single_row_gets_the_best_plan_there_is(rates: list[float], verify: float, found: int) -> None:
    small, large, looked = rates
    models = [model(0, [small], 0.05), model(1, [large], 0.12, start=0.03)]
    terms = terms_of(models, verify, [DEPTH], (lookup(2, [looked], [found]),))
    check(terms, best_plan(terms), np.ones(1), 1.0 - 1e-9)


@settings(max_examples=40, deadline=None)
@given(
    small=st.lists(RATE, min_size=3, max_size=3),
    large=st.lists(RATE, min_size=3, max_size=3),
    verify=st.floats(0.005, 0.2),
    limits=st.lists(st.integers(0, 3), min_size=3, max_size=3),
    late=st.floats(1.0, 8.0),
)
def test_no_plan_of_a_batch_is_much_better(
    small: list[float], large: list[float], verify: float, limits: list[int], late: float
) -> None:
    """Two models, three rows of which one may count more: all plans are looked at."""
    terms = terms_of([model(0, small, 0.05), model(1, large, 0.12)], verify, limits)
    weight = np.array([1.0, 1.0, late])
    check(terms, best_plan(replace(terms, weight=weight)), weight, 0.98)


@settings(max_examples=40, deadline=None)
@given(
    rates=st.lists(RATE, min_size=3, max_size=3),
    looked=st.lists(RATE, min_size=3, max_size=3),
    found=st.lists(st.integers(0, 3), min_size=3, max_size=3),
    verify=st.floats(0.005, 0.2),
)
def test_lookups_of_a_batch_are_weighed_against_its_model(
    rates: list[float], looked: list[float], found: list[int], verify: float
) -> None:
    terms = terms_of([model(0, rates, 0.05)], verify, [3, 3, 3], (lookup(1, looked, found),))
    check(terms, best_plan(terms), np.ones(3), 0.98)


@settings(max_examples=40, deadline=None)
@given(st.lists(RATE, min_size=3, max_size=3), st.lists(st.integers(0, 3), min_size=3, max_size=3))
def test_the_best_drafts_are_priced_where_they_do_not_pay(rates: list[float], limits: list[int]) -> None:
    """The best of all rows at one depth, as far as each may."""
    terms = terms_of([model(0, rates, 0.3)], 0.1, limits)
    terms.verify[1:] += 0.5
    ways = [tuple(min(depth, most) if depth <= most else 0 for most in limits) for depth in range(1, 1 + max(limits))]
    best = max((goodput(terms, way, (0, 0, 0), np.ones(3)) for way in ways), default=np.nan)
    assert np.isclose(drafting_goodput(terms), best, equal_nan=True)


@pytest.mark.parametrize("rows", [1, 2])
def test_a_first_token_that_is_dear_does_not_hide_those_behind_it(rows: int) -> None:
    """Where a second token makes a pass half as long again and six more cost nothing, drafts are deep or not at all."""
    terms = terms_of([model(0, [0.9] * rows, 0.02)], 0.0, [3] * rows)
    terms.verify[1:] = 0.5
    assert best_plan(terms).deepest == {0: 3}


def test_a_late_row_drafts_deeper_and_the_others_less() -> None:
    """Drafts hardly pay for rows that are alike: with eight times the weight, one of them drafts."""
    terms = terms_of([model(0, [0.33, 0.33], 0.2)], 0.05, [3, 3])
    assert not best_plan(terms).depths.any()
    late = best_plan(replace(terms, weight=np.array([1.0, 8.0]))).depths
    assert late[1] > late[0]


def test_lookups_are_added_to_a_model_where_they_are_likelier() -> None:
    """Row 0 is in the middle of a run; in row 1 the lookup knows less than the model, and nothing is found in row 2."""
    terms = terms_of(
        [model(0, [0.6, 0.9, 0.6], 0.02, side_nodes=1.0)], 0.01, [3, 3, 3], (lookup(1, [0.98, 0.1, 0.98], [3, 3, 0]),)
    )
    only = terms_of([model(0, [0.6, 0.9, 0.6], 0.02, side_nodes=1.0)], 0.01, [3, 3, 3])
    plan = best_plan(only)
    assert plan.depths.tolist() == [3, 3, 3]
    united = with_lookups(terms, plan)
    assert united.lookups is not None
    assert united.lookups.tolist() == [3, 0, 0]
    assert united.goodput > plan.goodput
    assert united.tokens[0] > plan.tokens[0]
    assert with_lookups(only, plan) is plan

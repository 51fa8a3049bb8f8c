"""The joint choice against every choice there is, and n-gram proposals against what was planned."""

from __future__ import annotations

from itertools import product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.control.algorithms.planning import (
    NgramProposal,
    allocated,
    best_of,
    best_plan,
    drafting_goodput,
)
from adaptspec.control.algorithms.round_terms import ModelTerms, RoundTerms

DEPTH = 3


def model(which: int, acceptance: list[float], step: float) -> ModelTerms:
    """A model that is right as often at every position."""
    rate = np.repeat(np.array(acceptance)[:, None], DEPTH, axis=1)
    gains = np.concatenate((np.zeros((len(rate), 1)), np.cumsum(np.cumprod(rate, axis=1), axis=1)), axis=1)
    ones, sizes = np.ones(DEPTH), np.arange(DEPTH + 1.0)
    unsure = np.ones((len(rate), 10))
    return ModelTerms(which, rate, gains, sizes, sizes, ones, step, 0.01, 0.0, np.zeros(len(rate)), unsure, np.ones(1))


def terms_of(models: list[ModelTerms], verify: float, limits: list[int]) -> RoundTerms:
    """Times in units of a plain round's."""
    rows = len(limits)
    line = verify * np.arange(rows * DEPTH + 1.0)
    return RoundTerms(rows, 1.0, 0.0, line, np.arange(DEPTH + 1) <= np.array(limits)[:, None], tuple(models))


def goodput(terms: RoundTerms, depths: tuple[int, ...], whose: tuple[int, ...]) -> float:
    """Of one choice of depths and models."""
    kept, tokens, steps = float(terms.size), 0, {m.which: 0 for m in terms.models}
    for row, (depth, who) in enumerate(zip(depths, whose, strict=True)):
        kept += terms.models[who].gains[row, depth]
        tokens += depth
        steps[who] = max(steps[who], depth)
    drafting = sum(m.per_step * steps[m.which] for m in terms.models)
    return kept / (terms.plain + drafting + 0.01 * tokens + terms.verify[tokens])


@settings(max_examples=60)
@given(
    small=st.lists(st.floats(0.05, 0.95), min_size=3, max_size=3),
    large=st.lists(st.floats(0.05, 0.95), min_size=3, max_size=3),
    verify=st.floats(0.005, 0.2),
    limits=st.lists(st.integers(0, 3), min_size=3, max_size=3),
)
def test_no_choice_is_much_better(small: list[float], large: list[float], verify: float, limits: list[int]) -> None:
    """Two models, three rows: all 3,375 choices are looked at."""
    terms = terms_of([model(0, small, 0.05), model(1, large, 0.12)], verify, limits)
    plan = best_plan(terms)
    depths, who, _ = best_of(terms, plan.deepest, plan.goodput, plan.line, {})
    assert (depths <= np.array(limits)).all()
    found = goodput(terms, tuple(depths.tolist()), tuple(who.tolist()))
    ways = product(product(*(range(limit + 1) for limit in limits)), product((0, 1), repeat=3))
    assert found >= 0.98 * max(goodput(terms, *way) for way in ways)
    assert found >= 1.0 - 1e-9 or not depths.any()  # times are such that plain decoding yields 3 tokens in one


@settings(max_examples=40)
@given(st.lists(st.floats(0.05, 0.95), min_size=3, max_size=3), st.lists(st.integers(0, 3), min_size=3, max_size=3))
def test_what_drafts_would_come_to_is_known_where_they_do_not_pay(rates: list[float], limits: list[int]) -> None:
    """The best of all rows at one depth, as far as each may."""
    terms = terms_of([model(0, rates, 0.3)], 0.1, limits)
    terms.verify[1:] += 0.5
    ways = [tuple(depth if depth <= most else 0 for most in limits) for depth in range(1, 1 + max(limits))]
    best = max((goodput(terms, way, (0, 0, 0)) for way in ways), default=np.nan)
    assert np.isclose(drafting_goodput(terms), best, equal_nan=True)


def test_a_first_token_that_is_dear_does_not_hide_those_behind_it() -> None:
    """Where a second token makes a pass half as long again and six more cost nothing, drafts are deep or not at all."""
    sure = model(0, [0.9], 0.02)
    terms = terms_of([sure], 0.0, [3])
    terms.verify[1:] = 0.5
    assert best_plan(terms).deepest == {0: 3}


def test_proposals_are_taken_where_they_earn_more() -> None:
    """The row that is in the middle of a run takes all of it; the other goes on as planned."""
    terms = terms_of([model(0, [0.8, 0.8], 0.05)], 0.02, [3, 3])
    plan = best_plan(terms)
    *_, planned = best_of(terms, plan.deepest, plan.goodput, plan.line, plan.share)
    gains = np.array([[0.0, 0.99, 1.97, 2.94], [0.0, 0.3, 0.4, 0.42]])
    found = allocated(terms, planned, None, [NgramProposal(1, gains, terms.fits, 0.0)], plan.goodput)
    assert found.taken.tolist() == [3, 0]
    assert found.whose.tolist() == [1, 0]
    assert found.price > plan.goodput

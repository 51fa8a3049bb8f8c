"""Stop rules: each is its inequality, what is not known stops nothing, AdaEDL follows acceptance; all are built."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from adaptspec.arrays import FloatArray
from adaptspec.control.algorithms.algorithm import Choice, ExpectedValue
from adaptspec.control.stopping import (
    AdaEdlStop,
    ConfidenceStopSpec,
    EntropyStopSpec,
    MarginalGoodputStop,
    ThresholdStop,
    svip_stop,
)
from tests.control.asking import CURVE, ask, choice, drafted, terms
from tests.control.helpers import record
from tests.trees import SIBLING, branching

NAN = float("nan")
ROWS = st.lists(st.floats(0.0, 12.0), min_size=1, max_size=6)


@given(threshold=st.floats(0.0, 1.0), sure=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=6))
def test_confidence_below_the_threshold_stops(threshold: float, sure: list[float]) -> None:
    rule = ConfidenceStopSpec(rule="confidence", threshold=threshold).build()
    assert ask(rule.table(choice(None, len(sure))), sure) == [value >= threshold for value in sure]


@given(threshold=st.floats(0.0, 12.0), spread=ROWS)
def test_entropy_above_the_threshold_stops(threshold: float, spread: list[float]) -> None:
    rule = EntropyStopSpec(rule="entropy", threshold=threshold).build()
    table = rule.table(choice(None, len(spread)))
    assert ask(table, [0.0] * len(spread), spread) == [value <= threshold for value in spread]


@given(spread=ROWS, scale=st.floats(0.01, 1.0), threshold=st.floats(0.0, 2.0))
def test_svip_is_its_inequality(spread: list[float], scale: float, threshold: float) -> None:
    assume(all(abs(math.sqrt(scale * value) - threshold) > 1e-9 for value in spread))
    going = ask(svip_stop(scale, threshold).table(choice(None, len(spread))), [0.5] * len(spread), spread)
    assert going == [math.sqrt(scale * value) <= threshold for value in spread]


@pytest.mark.parametrize("rule", [ThresholdStop(confidence=0.5), ThresholdStop(entropy=0.5)])
def test_what_is_unknown_stops_nothing(rule: ThresholdStop) -> None:
    assert ask(rule.table(choice(None)), [NAN], [NAN]) == [True]


@given(entropy=st.floats(0.0, 12.0), threshold=st.floats(0.0, 1.0))
def test_adaedl_is_its_inequality(entropy: float, threshold: float) -> None:
    bound = 1.0 - math.sqrt(0.2 * entropy)
    assume(abs(bound - threshold) > 1e-9)
    rule = AdaEdlStop(threshold=threshold)
    assert ask(rule.table(choice(None)), [0.5], [entropy]) == [bound >= threshold]


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=60))
def test_the_threshold_of_adaedl_stays_a_probability(rounds: list[tuple[int, int]]) -> None:
    rule = AdaEdlStop(step=1.0)
    for tokens, accepted in rounds:
        rule.learn(record([tokens], [min(tokens, accepted)]))
        assert 0.0 <= rule.threshold <= 1.0


def test_rejections_make_adaedl_stricter_and_acceptance_looser() -> None:
    rule = AdaEdlStop()
    start = rule.threshold
    for _ in range(100):
        rule.learn(record([4], [1]))
    strict = rule.threshold
    for _ in range(300):
        rule.learn(record([4], [4]))
    assert strict > start > rule.threshold


def test_adaedl_goes_by_the_chains_that_it_stops() -> None:
    """A sibling that was right does not make the chain beside it right."""
    tree, chain = AdaEdlStop(), AdaEdlStop()
    for _ in range(50):
        tree.learn(branching(SIBLING))
        chain.learn(record([3], [0]))
    assert tree.threshold == chain.threshold > AdaEdlStop().threshold


# --- the ratio rule: who drafts on, at whose price, by whose calibration ------------------------------------------

DEPTH = 7
# A draft that is as often right as it says.
HONEST = (np.arange(10) + 0.5) / 10


def plan(
    rows: int = 1, goodput: float = 1000.0, acceptance: float = 0.8, step: float = 2e-4, curve: FloatArray = CURVE
) -> Choice:
    model = terms(np.full((rows, DEPTH), acceptance), np.tile(HONEST, (rows, 1)), step)
    return choice(ExpectedValue(goodput, curve, (model,), {0: rows}), rows)


def test_it_follows_the_row() -> None:
    """The same confidence, in a row that is rejected more often than it should be, and in one less often."""
    own = np.stack((1.0 - 2.0 * (1.0 - HONEST), 1.0 - 0.5 * (1.0 - HONEST)))
    model = terms(np.full((2, DEPTH), 0.8), np.maximum(own, 0.01), 3e-4)
    table = MarginalGoodputStop().table(choice(ExpectedValue(1000.0, CURVE, (model,), {0: 2}), 2))
    assert ask(table, [0.55, 0.55]) == [False, True]


def test_a_step_is_shared_by_the_rows_that_are_expected_to_take_it() -> None:
    """Alone, the step costs more than the row gains; four rows together pay for it."""
    dear = plan(goodput=1000.0, step=9e-4)
    assert ask(MarginalGoodputStop().table(dear), [0.95]) == [False]
    four = MarginalGoodputStop().table(plan(4, goodput=1000.0, step=9e-4))
    assert ask(four, [0.95, 0.95, 0.95, 0.02]) == [True, True, True, False]


def test_tokens_are_verified_at_the_price_of_those_that_others_submit() -> None:
    """Where the ninth token is dear, a row alone drafts seven and two rows stop half-way."""
    steep = 1e-3 + np.concatenate((np.linspace(0.0, 1e-4, 9), 1e-4 + 2e-3 * np.arange(1.0, 20.0)))
    alone, both = (MarginalGoodputStop().table(plan(rows, step=1e-5, curve=steep)) for rows in (1, 2))
    assert drafted(alone, [0.99] * DEPTH) == DEPTH
    assert 1 < drafted(both, [0.99] * DEPTH) < DEPTH


def test_a_token_of_a_late_row_may_cost_more() -> None:
    """Rows alike, but that a token of the second counts eight times as much: it goes on where the first stops."""
    model = terms(np.full((2, DEPTH), 0.8), np.tile(HONEST, (2, 1)))
    value = ExpectedValue(2500.0, CURVE, (model,), {0: 2}, weight=np.array([1.0, 8.0]))
    assert ask(MarginalGoodputStop().table(choice(value, 2)), [0.25, 0.25]) == [False, True]


def test_without_an_outlook_it_stops_nothing() -> None:
    assert MarginalGoodputStop().table(choice(None)) is None


def test_each_row_goes_by_the_calibration_and_costs_of_its_own_drafter() -> None:
    """Two models in one round: one that is right when it is sure, one that never is, and one that costs too much."""
    acceptance = np.full((3, DEPTH), 0.8)
    models = (
        terms(acceptance, np.tile(HONEST, (3, 1))),
        terms(acceptance, np.full((3, 10), 0.05), drafter_id=1),
        terms(acceptance, np.tile(HONEST, (3, 1)), step=5e-2, drafter_id=3),
    )
    made = replace(choice(ExpectedValue(1000.0, CURVE, models, {0: 1, 1: 1, 3: 1}), 3), drafter=np.array([1, 0, 3]))
    rule = MarginalGoodputStop()
    assert ask(rule.table(made), [0.95] * 3) == [False, True, False]
    assert rule.table(made) is rule.table(made)
    turned = replace(made, drafter=np.array([0, 2, 1]))  # the second drafts by lookup, which no rule stops
    assert ask(rule.table(turned), [0.95, NAN, 0.95]) == [True, True, False]


@given(
    sure=st.lists(st.one_of(st.just(NAN), st.floats(0.0, 1.0)), min_size=1, max_size=DEPTH),
    goodput=st.floats(100.0, 3000.0),
    acceptance=st.lists(st.floats(0.05, 0.99), min_size=DEPTH, max_size=DEPTH),
    step=st.floats(0.0, 1e-3),
)
def test_for_a_row_alone_the_table_is_the_inequality(
    sure: list[float], goodput: float, acceptance: list[float], step: float
) -> None:
    """Survival x next acceptance > goodput x (one more step + one more verified token), token after token."""
    model = terms(np.array([acceptance]), HONEST[None], step)
    table = MarginalGoodputStop().table(choice(ExpectedValue(goodput, CURVE, (model,), {0: 1})))
    survival, wanted = 1.0, len(sure)
    for at, value in enumerate(sure):
        survival *= acceptance[at] if np.isnan(value) else HONEST[min(int(value * 10), 9)]
        following = acceptance[at + 1] if at + 1 < DEPTH else 0.0
        gain, cost = survival * following, goodput * (step + 1e-4)
        if gain == pytest.approx(cost):
            return  # either is right
        if gain < cost:
            wanted = at + 1
            break
    assert drafted(table, sure) == wanted

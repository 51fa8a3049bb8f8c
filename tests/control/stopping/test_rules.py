"""Stop rules: each is its inequality, what is not known stops nothing, AdaEDL follows acceptance; all are built."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from adaptspec.control.choosers.chooser import Outlook
from adaptspec.control.stopping import StopSpec
from adaptspec.control.stopping.rules import (
    AdaEdlStop,
    AdaEdlStopSpec,
    ConfidenceStopSpec,
    EntropyStopSpec,
    StopRule,
    SvipStopSpec,
    ThresholdStop,
    svip_stop,
)
from tests.control.helpers import record
from tests.control.stopping.asking import CURVE, ask, choice, terms

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


def test_the_defaults_of_svip_are_the_papers() -> None:
    """sqrt(0.15 H) > 0.3 is H > 0.6 nats."""
    rule = SvipStopSpec(rule="svip").build()
    assert not rule.learns
    assert ask(rule.table(choice(None, 2)), [0.5, 0.5], [0.59, 0.61]) == [True, False]


@pytest.mark.parametrize("rule", [ThresholdStop(confidence=0.5), ThresholdStop(entropy=0.5)])
def test_what_is_unknown_stops_nothing(rule: ThresholdStop) -> None:
    assert ask(rule.table(choice(None)), [NAN], [NAN]) == [True]


def test_the_table_is_the_same_while_the_batch_is_as_large() -> None:
    """A decision that stands is the same object, which is what makes it cheap."""
    rule = ThresholdStop(confidence=0.5)
    assert rule.table(choice(None, 2)) is rule.table(choice(None, 2))
    three = rule.table(choice(None, 3))
    assert three is not None
    assert three.confidence is not None
    assert three.confidence.shape == (3, 1)


@given(entropy=st.floats(0.0, 12.0), threshold=st.floats(0.0, 1.0))
def test_adaedl_is_its_inequality(entropy: float, threshold: float) -> None:
    bound = 1.0 - math.sqrt(0.2 * entropy)
    assume(abs(bound - threshold) > 1e-9)
    rule = AdaEdlStop(threshold=threshold)
    assert ask(rule.table(choice(None)), [0.5], [entropy]) == [bound >= threshold]


def test_adaedl_never_stops_a_draft_without_entropies() -> None:
    assert ask(AdaEdlStop().table(choice(None)), [0.5], [float("nan")]) == [True]


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=60))
def test_the_threshold_of_adaedl_stays_a_probability(rounds: list[tuple[int, int]]) -> None:
    rule = AdaEdlStop(step=1.0)
    for drafted, accepted in rounds:
        rule.learn(record([drafted], [min(drafted, accepted)]))
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


def test_a_round_without_drafts_says_adaedl_nothing() -> None:
    rule = AdaEdlStop()
    start = rule.threshold
    rule.learn(record([0], [0]))
    assert rule.threshold == start


def test_the_spec_of_adaedl_passes_its_numbers_on() -> None:
    rule = AdaEdlStopSpec(rule="adaedl", kappa=0.5, threshold=0.5, target=0.7, step=0.0).build()
    assert rule.learns
    assert ask(rule.table(choice(None)), [0.5], [0.49]) == [True]
    rule.learn(record([4], [0]))
    assert ask(rule.table(choice(None)), [0.5], [0.51]) == [False]


SPECS = {
    "none": {},
    "confidence": {"threshold": 0.5},
    "entropy": {"threshold": 1.0},
    "adaedl": {},
    "svip": {},
    "marginal-goodput": {},
}


def build(rule: str) -> StopRule:
    spec = TypeAdapter(StopSpec).validate_python({"rule": rule, **SPECS[rule]})
    built: StopRule = spec.build()
    return built


@pytest.mark.parametrize("rule", SPECS)
def test_every_rule_is_built_and_takes_note_of_rounds(rule: str) -> None:
    built = build(rule)
    for _ in range(20):
        built.learn(record([3, 3, 3], [1, 0, 3]))
    model = terms(np.full((3, 7), 0.8), np.full((3, 10), 0.8))
    table = built.table(choice(Outlook(800.0, CURVE, (model,), {0: 3}), 3))
    assert (table is None) == (rule == "none")
    if table is not None:
        assert len(ask(table, [0.9, 0.5, 0.2], [0.1, 0.5, 2.0])) == 3

"""Thresholds on one number: each is its inequality, and a drafter that does not know the number is never stopped."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from adaptspec.control.stopping.thresholds import (
    ConfidenceStopSpec,
    EntropyStopSpec,
    SvipStopSpec,
    ThresholdStop,
    svip_stop,
)
from tests.control.stopping.asking import ask, choice

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

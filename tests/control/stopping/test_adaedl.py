"""AdaEDL: the inequality, and a threshold that follows acceptance."""

from __future__ import annotations

import math

from hypothesis import assume, given
from hypothesis import strategies as st

from adaptspec.control.stopping.adaedl import AdaEdlStop, AdaEdlStopSpec
from tests.control.helpers import record
from tests.control.stopping.asking import ask, choice

CHOICE = choice(None)


@given(entropy=st.floats(0.0, 12.0), threshold=st.floats(0.0, 1.0))
def test_it_is_the_inequality(entropy: float, threshold: float) -> None:
    bound = 1.0 - math.sqrt(0.2 * entropy)
    assume(abs(bound - threshold) > 1e-9)
    rule = AdaEdlStop(threshold=threshold)
    assert ask(rule.table(CHOICE), [0.5], [entropy]) == [bound >= threshold]


def test_a_draft_without_entropies_is_never_stopped() -> None:
    assert ask(AdaEdlStop().table(CHOICE), [0.5], [float("nan")]) == [True]


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=60))
def test_the_threshold_stays_a_probability(rounds: list[tuple[int, int]]) -> None:
    rule = AdaEdlStop(step=1.0)
    for drafted, accepted in rounds:
        rule.learn(record([drafted], [min(drafted, accepted)]))
        assert 0.0 <= rule.threshold <= 1.0


def test_rejections_make_it_stricter_and_acceptance_looser() -> None:
    rule = AdaEdlStop()
    start = rule.threshold
    for _ in range(100):
        rule.learn(record([4], [1]))
    strict = rule.threshold
    for _ in range(300):
        rule.learn(record([4], [4]))
    assert strict > start > rule.threshold


def test_a_round_without_drafts_says_nothing() -> None:
    rule = AdaEdlStop()
    start = rule.threshold
    rule.learn(record([0], [0]))
    assert rule.threshold == start


def test_the_spec_passes_its_numbers_on() -> None:
    rule = AdaEdlStopSpec(rule="adaedl", kappa=0.5, threshold=0.5, target=0.7, step=0.0).build()
    assert rule.learns
    assert ask(rule.table(CHOICE), [0.5], [0.49]) == [True]
    rule.learn(record([4], [0]))
    assert ask(rule.table(CHOICE), [0.5], [0.51]) == [False]

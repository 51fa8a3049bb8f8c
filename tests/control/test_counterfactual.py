"""Counterfactual: exact up to what was seen, honest about what was not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.control.counterfactual import Counterfactual
from adaptspec.control.policy import Decision
from adaptspec.draft_tables import StopTable
from tests.control.helpers import record

CERTAIN = np.ones((1, 8))


def decision(depth: int, threshold: float | None = None) -> Decision:
    depths, zero = np.array([depth]), np.zeros(1, dtype=np.int64)
    stop = None if threshold is None else StopTable(confidence=np.full((len(depths), 1), threshold))
    return Decision(depths, zero, zero, stop)


def outcome(agrees: list[bool], depth: int) -> int:
    """Tokens a draft of this depth gets accepted, given which positions agree."""
    window = agrees[:depth]
    return window.index(False) if False in window else len(window)


@given(st.lists(st.booleans(), min_size=8, max_size=8), st.integers(1, 8), st.integers(0, 8))
@settings(deadline=None)
def test_the_certain_part_is_what_would_have_happened(agrees: list[bool], ran: int, asked: int) -> None:
    """Any text, any depth that ran, any that is asked about: exact, or open with the truth between the bounds."""
    acted = record([ran], [outcome(agrees, ran)])
    known = Counterfactual.of(acted, np.array([0]), 8)
    drafted = known.drafted(decision(asked))
    assert drafted.tolist() == [asked]
    surely, expected, _ = known.accepted(drafted, 0.5 * CERTAIN, 0.9 * CERTAIN)
    truth = outcome(agrees, asked)
    if asked <= ran or not known.open[0]:
        assert (surely[0], expected[0]) == (truth, 0.0)
    else:
        assert surely[0] == ran <= truth
        assert np.isclose(expected[0], sum(0.5**j for j in range(1, asked - ran + 1)))


def test_dice_draw_what_is_expected() -> None:
    """Learning from draws is learning the estimate."""
    known = Counterfactual.of(record([2], [2]), np.array([0]), 8)
    drafted, rng = np.array([6]), np.random.default_rng(0)
    draws = [known.accepted(drafted, 0.7 * CERTAIN, rng.random((1, 8)))[2][0] for _ in range(4000)]
    expected = known.accepted(drafted, 0.7 * CERTAIN, CERTAIN)[1][0]
    assert abs(np.mean(draws) - expected) < 0.06
    assert max(draws) == 4


def test_a_stop_rule_is_heeded_where_confidence_is_known() -> None:
    """Up to what ran; beyond it nothing is known and the rule goes on by itself."""
    acted = record([3], [3])
    acted.confidence[0] = [0.9, 0.6, 0.9]
    known = Counterfactual.of(acted, np.array([0]), 8)
    assert known.drafted(decision(5, 0.7)).tolist() == [2]
    assert known.drafted(decision(5, 0.5)).tolist() == [5]
    assert known.drafted(decision(0, 0.5)).tolist() == [0]


def test_a_lookup_that_found_no_more_would_have_found_no_more() -> None:
    """Without confidences a draft that fell short of its depth had ended."""
    silent = replace(record([2], [2], depths=[5]), confidence=np.full((1, 2), np.nan))
    known = Counterfactual.of(silent, np.array([0]), 8)
    assert known.drafted(decision(7)).tolist() == [2]
    assert not known.open[0]


def test_another_drafter_is_known_as_far_as_it_was_scored() -> None:
    """What hindsight says of a drafter that did not run, or nothing at all."""
    acted = record([3, 3, 3], [3, 3, 3])
    other = np.array([1, 1, 1])
    nothing = Counterfactual.of(acted, other, 8)
    assert nothing.open.all()
    assert not nothing.seen.any()
    scored = replace(
        acted,
        shadow=np.array([[-1, -1, -1], [2, 4, 1]]),
        shadow_drafted=np.array([[-1, -1, -1], [4, 4, 1]]),
    )
    known = Counterfactual.of(scored, other, 8)
    assert known.open.tolist() == [False, True, False]  # rejected; all agreed so far; ended
    surely = known.accepted(np.array([7, 7, 7]), 0.5 * np.ones((3, 8)), np.zeros((3, 8)))[0]
    assert surely.tolist() == [2, 4, 1]
    wish = Decision(np.array([7, 7, 7]), other, other)
    assert known.drafted(wish).tolist() == [7, 7, 1]
    assert np.isnan(known.confidence).all()

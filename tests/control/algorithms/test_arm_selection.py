"""ArmSelector functions' view: ratios of sums with errors that shrink, off known, deeper arms entered from below."""

from __future__ import annotations

import numpy as np
import pytest

from adaptspec.control.algorithms.arm_selection import enterable, estimates
from tests.control.algorithms.makers import ladder

COSTS = np.array([1.0, 1.3, 1.8, 2.7])
NOTHING = np.zeros((1, 4))


def sums(rounds: float, earned: float, spent: float, noise: float = 0.0) -> np.ndarray:
    """Every arm alike; `noise` is the variance of what a round earns."""
    one = np.array([1.0, earned, spent, earned**2 + noise, earned * spent, spent**2])
    return np.tile(rounds * one, (1, 4, 1))


def test_off_is_one_and_known() -> None:
    got = estimates(sums(0.0, 0.0, 0.0), ladder(), COSTS, NOTHING)
    assert (got["ratio"][0, 0], got["error"][0, 0], got["seen"][0, 0]) == (1.0, 0.0, np.inf)


def test_catching_up_lowers_what_an_arm_is_worth() -> None:
    free = estimates(sums(100.0, 2.0, 1.6), ladder(), COSTS, NOTHING)["ratio"]
    lagging = estimates(sums(100.0, 2.0, 1.6), ladder(), COSTS, np.array([[0.0, 0.4, 0.4, 0.4]]))["ratio"]
    assert lagging[0, 1] == pytest.approx(free[0, 1] * 1.6 / 2.0, rel=0.01)
    assert lagging[0, 0] == 1.0


def test_what_a_shallow_arm_shows_is_hoped_of_deeper_ones() -> None:
    """All right, or all wrong, at depth 1: that is what an unseen depth 7 is expected to be."""
    seen = np.zeros((2, 4, 6))
    for context, earned in ((0, 2.0), (1, 1.0)):
        seen[context, 1] = 200.0 * np.array([1.0, earned, 1.3, earned**2, 1.3 * earned, 1.69])
    got = estimates(seen, ladder(), COSTS, np.zeros((2, 4)))["ratio"]
    assert got[0, 3] > 7.5 / 2.7
    assert got[1, 3] < 1.1 / 2.7


def test_deeper_arms_are_entered_from_below_and_limits_hold() -> None:
    unseen = np.array([[np.inf, 0.0, 0.0, 0.0]])
    assert enterable(unseen, ladder(), np.array([7]))[0].tolist() == [True, True, False, False]
    seen = np.array([[np.inf, 9.0, 9.0, 0.0]])
    assert enterable(seen, ladder(), np.array([7]))[0].tolist() == [True, True, True, True]
    assert enterable(seen, ladder(), np.array([2]))[0].tolist() == [True, True, False, False]

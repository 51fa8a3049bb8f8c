"""Exponential weights: propensities are true, unseen arms keep their value, exploration is bounded both ways."""

from __future__ import annotations

import numpy as np
import pytest

from adaptspec.control.bandits.contexts import Contexts
from adaptspec.control.bandits.ledger import Lot
from adaptspec.control.choosers.exp3 import Exp3
from adaptspec.errors import StateError
from tests.control.bandits.makers import ladder, view

SEEN, RATIO = (np.inf, 50.0, 50.0, 50.0), (1.0, 1.2, 1.4, 1.1)


def exp3(scope: str = "request", rows: int = 200, seed: int = 0) -> Exp3:
    return Exp3(ladder(), Contexts(scope, rows, 1), seed=seed)  # type: ignore[arg-type]


def lot(context: int, earned: float, arms: tuple[int, ...]) -> Lot:
    sums = np.zeros((1, 4, 6))
    for arm in arms:
        sums[0, arm] = 8.0 * np.array([1.0, earned, 1.0, earned**2, earned, 1.0])
    return Lot(np.array([context]), np.array([0]), np.array([8.0]), sums)


def test_arms_are_drawn_as_often_as_they_say() -> None:
    learner = exp3()
    pick = learner.pick(view(SEEN, RATIO, contexts=400))
    for arm in np.unique(pick.arms):
        mine = pick.arms == arm
        assert abs(pick.propensities[mine].mean() - mine.mean()) < 0.06


def test_an_arm_that_did_better_than_believed_gains_and_unseen_ones_keep_theirs() -> None:
    learner = exp3("global", 1)
    context = view(SEEN, RATIO)
    before = learner.pick(context)
    assert before.arms.shape == (1,)
    for _ in range(6):
        learner.observe(lot(0, 2.5, (3,)), np.zeros((1, 0)), np.zeros(1, dtype=np.bool_))
    corrections = learner.learned()["corrections"][0, 0]
    assert corrections[3] > 0.0
    assert corrections[:3].tolist() == [0.0, 0.0, 0.0]


def test_it_explores_once_in_128_rounds_and_mostly_one_step_up() -> None:
    learner = exp3("global", 1)
    context = view((np.inf, 50.0, 50.0, 50.0), (1.0, 0.0, 0.0, 0.0), rounds_played=8)
    arms = np.array([learner.pick(context).arms[0] for _ in range(640)])
    assert 36 <= np.count_nonzero(arms) <= 50
    assert np.count_nonzero(arms == 1) > 0.5 * np.count_nonzero(arms)


def test_without_a_ration_it_stays_for_certain() -> None:
    pick = exp3("global", 1).pick(view(SEEN, RATIO, incumbent=1, may=False))
    assert (pick.arms.tolist(), pick.propensities.tolist()) == ([1], [1.0])


def test_state_comes_back_and_requests_keep_none() -> None:
    learner, fresh = exp3("global", 1), exp3("global", 1)
    learner.observe(lot(0, 2.5, (3,)), np.zeros((1, 0)), np.zeros(1, dtype=np.bool_))
    fresh.restore(learner.learned())
    np.testing.assert_array_equal(fresh.learned()["corrections"], learner.learned()["corrections"])
    assert exp3().learned() == {}
    with pytest.raises(StateError):
        fresh.restore({"episodes": np.zeros((1, 1)), "corrections": np.zeros((1, 1, 3))})

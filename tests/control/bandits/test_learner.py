"""Settling scores: hysteresis and the ration of switches, the same for every algorithm."""

from __future__ import annotations

import numpy as np

from adaptspec.control.bandits.learner import settle
from tests.control.bandits.makers import view

SEEN = (np.inf, 9.0, 9.0, 0.0)
RATIO = (1.0, 1.2, 1.1, 2.0)


def test_the_best_known_was_seen() -> None:
    assert view(SEEN, RATIO).best_known.tolist() == [1]
    assert view((0.0, 0.0, 0.0, 0.0), RATIO, incumbent=2).best_known.tolist() == [2]


def test_the_highest_score_is_played_and_called_exploring_if_not_the_best_known() -> None:
    arms, exploring = settle(np.array([[1.0, 1.2, 1.1, 2.5]]), view(SEEN, RATIO, incumbent=1), 0.01)
    assert (arms.tolist(), exploring.tolist()) == ([3], [True])


def test_an_incumbent_stays_for_a_small_lead_and_without_a_ration() -> None:
    close, far = np.array([[1.0, 1.2, 1.205, 0.0]]), np.array([[1.0, 1.2, 1.9, 0.0]])
    assert settle(close, view(SEEN, RATIO, incumbent=1), 0.01)[0].tolist() == [1]
    assert settle(far, view(SEEN, RATIO, incumbent=1, may=False), 0.01)[0].tolist() == [1]
    assert settle(far, view(SEEN, RATIO, incumbent=1), 0.01)[0].tolist() == [2]


def test_many_draws_are_settled_like_one() -> None:
    """Counting propensities runs the same rules on further draws."""
    rng = np.random.default_rng(0)
    scores = rng.normal(1.0, 0.5, (5, 3, 4))
    state = view(SEEN, RATIO, incumbent=1, contexts=3)
    together = settle(scores, state, 0.01)[0]
    apart = np.array([settle(draw, state, 0.01)[0] for draw in scores])
    np.testing.assert_array_equal(together, apart)

"""Thompson sampling: plays arms about as often as they may be best, and says how often."""

from __future__ import annotations

import numpy as np

from adaptspec.control.choosers.thompson import Thompson
from tests.control.bandits.makers import ladder, view


def test_a_clear_best_is_played_and_close_ones_are_shared() -> None:
    clear = Thompson(ladder()).pick(view((np.inf, 400.0, 400.0, 400.0), (1.0, 1.2, 1.9, 1.1), contexts=200))
    assert (clear.arms == 2).all()
    close = Thompson(ladder()).pick(view((np.inf, 400.0, 400.0, 3.0), (1.0, 1.2, 1.5, 1.5), contexts=200))
    assert 40 < (close.arms == 3).sum() < 160


def test_propensities_are_how_often_an_arm_is_drawn() -> None:
    pick = Thompson(ladder(), seed=3).pick(view((np.inf, 400.0, 400.0, 3.0), (1.0, 1.2, 1.5, 1.5), contexts=500))
    for arm in (2, 3):
        mine = pick.arms == arm
        assert abs(pick.propensities[mine].mean() - mine.mean()) < 0.05
    assert (pick.propensities >= 1 / 33).all()


def test_what_was_seen_together_is_drawn_together() -> None:
    """Equal counts, so only luck that all share is uncertain: the best mean is played."""
    pick = Thompson(ladder()).pick(view((np.inf, 5.0, 5.0, 5.0), (1.0, 1.2, 1.4, 1.3), contexts=100))
    assert (pick.arms == 2).all()

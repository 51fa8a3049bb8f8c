"""UCB: explores what it knows least, leaves what cannot win, and is deterministic."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from adaptspec.control.bandits.arms import Arms
from adaptspec.control.choosers.ucb import Ucb
from tests.control.bandits.makers import ladder, view


def picked(seen: tuple[float, ...], ratio: tuple[float, ...], optimism: float = 0.3, arms: Arms | None = None) -> int:
    return int(Ucb(arms or ladder(), optimism).pick(view(seen, ratio)).arms[0])


def test_of_two_alike_it_plays_the_one_seen_less() -> None:
    assert picked((np.inf, 100.0, 100.0, 5.0), (1.0, 1.2, 1.3, 1.3)) == 3
    assert picked((np.inf, 100.0, 100.0, 5.0), (1.0, 1.2, 1.3, 1.3), optimism=0.0) == 2


def test_noise_that_arms_share_is_no_reason_to_explore() -> None:
    """All seen in the same rounds: the best mean is played, whatever the optimism."""
    assert picked((np.inf, 20.0, 20.0, 20.0), (1.0, 1.2, 1.3, 1.25), optimism=5.0) == 2


def test_off_is_left_only_when_the_rest_has_faded() -> None:
    assert picked((np.inf, 20.0, 20.0, 20.0), (1.0, 0.8, 0.6, 0.4)) == 0
    assert picked((np.inf, 0.6, 0.0, 0.0), (1.0, 0.9, 0.6, 0.4)) == 1


def test_the_longer_it_is_off_the_more_it_is_worth_a_try() -> None:
    """Nothing but off was ever played: its rounds count as time gone by, or nothing would ever be tried."""
    made = view((np.inf, 0.0, 0.0, 0.0), (1.0, 0.9, 0.8, 0.6), incumbent=0)
    long = replace(made, estimates=replace(made.estimates, plain=np.array([100.0])))
    assert Ucb(ladder()).pick(made).arms.tolist() == [0]
    assert Ucb(ladder()).pick(long).arms.tolist() != [0]


def test_propensities_are_one() -> None:
    pick = Ucb(ladder()).pick(view((np.inf, 9.0, 9.0, 9.0), (1.0, 1.2, 1.3, 1.1), contexts=3))
    assert pick.propensities.tolist() == [1.0] * 3

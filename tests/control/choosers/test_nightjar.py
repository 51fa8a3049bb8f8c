"""Nightjar: every block begins by exploring, ever less of it explores, and switching back on has its price."""

from __future__ import annotations

import numpy as np

from adaptspec.control.bandits.contexts import Contexts
from adaptspec.control.choosers.nightjar import Nightjar
from tests.control.bandits.makers import ladder, view

# Close enough that none is ruled out, and seen together.
SEEN, RATIO = (np.inf, 5.0, 5.0, 5.0), (1.0, 1.2, 1.4, 1.3)


def nightjar(rows: int = 1) -> Nightjar:
    return Nightjar(ladder(), Contexts("request", rows, 1))


def test_exploration_thins_out_as_blocks_grow() -> None:
    learner = nightjar(50)
    state = view(SEEN, RATIO, contexts=100)
    explored = np.array([np.count_nonzero(learner.pick(state).arms != 2) for _ in range(255)])
    # The first bins of blocks 1, 2, 4 ... 128 explore for certain.
    first = [2**block - 1 for block in range(8)]
    assert (explored[first] > 55).all()
    assert explored[:31].mean() > 2.0 * explored[127:].mean()


def test_propensities_are_those_of_the_bin() -> None:
    """Only the arm above the best tells anything new: the first bin explores it, of the next two each with one half."""
    learner = nightjar(50)
    state = view(SEEN, RATIO, contexts=100)
    first = learner.pick(state)
    assert set(first.arms.tolist()) == {3}
    assert set(first.propensities.tolist()) == {1.0}
    learner.pick(state)
    second = learner.pick(state)
    assert set(second.arms.tolist()) == {2, 3}
    assert set(second.propensities.tolist()) == {0.5}


def test_no_block_outlasts_what_is_remembered() -> None:
    """At a discount of 0.99 that is 100 rounds, 12 bins: blocks end at 8 bins, and each of them explores."""
    learner = Nightjar(ladder(), Contexts("request", 50, 1), discount=0.99)
    state = view(SEEN, RATIO, contexts=100)
    explored = np.array([np.count_nonzero(learner.pick(state).arms != 2) for _ in range(200)])
    assert explored[100:].mean() > 0.25 * 100


def test_without_a_ration_it_neither_explores_nor_switches() -> None:
    learner = nightjar(50)
    pick = learner.pick(view(SEEN, RATIO, incumbent=1, contexts=100, may=False))
    assert (pick.arms == 1).all()


def test_what_a_shallow_arm_rules_out_is_not_explored_but_the_shallow_arm_is() -> None:
    """Off must be left again one day, at the price of one token rather than of seven."""
    learner = nightjar(50)
    state = view((np.inf, 400.0, 2.0, 2.0), (1.0, 0.77, 0.5, 0.4), contexts=100, spread=0.1)
    assert set(np.concatenate([learner.pick(state).arms for _ in range(7)]).tolist()) == {0, 1}

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
    # The first bins of blocks 1, 2, 4 ... 128 explore for certain: three arms in four are not the best.
    first = [2**block - 1 for block in range(8)]
    assert (explored[first] > 55).all()
    assert explored[:31].mean() > 2.0 * explored[127:].mean()


def test_propensities_are_those_of_the_bin() -> None:
    learner = nightjar(50)
    state = view(SEEN, RATIO, contexts=100)
    assert set(learner.pick(state).propensities.tolist()) == {0.25}
    learner.pick(state)
    second = learner.pick(state)
    assert second.propensities[second.arms == 2].tolist() == [0.625] * np.count_nonzero(second.arms == 2)
    assert 0.4 < (second.arms == 2).mean() < 0.85


def test_without_a_ration_it_neither_explores_nor_switches() -> None:
    learner = nightjar(50)
    pick = learner.pick(view(SEEN, RATIO, incumbent=1, contexts=100, may=False))
    assert (pick.arms == 1).all()


def test_what_a_shallow_arm_rules_out_is_not_explored_but_the_shallow_arm_is() -> None:
    """Off must be left again one day, at the price of one token rather than of seven."""
    learner = nightjar(50)
    state = view((np.inf, 400.0, 2.0, 2.0), (1.0, 0.77, 0.5, 0.4), contexts=100, spread=0.1)
    assert set(np.concatenate([learner.pick(state).arms for _ in range(7)]).tolist()) == {0, 1}

"""Arms: families by drafter and stop rule, what a round shows of other arms, and stop tables of mixed batches."""

from __future__ import annotations

import numpy as np

from adaptspec.control.algorithms.arms import Arms
from adaptspec.control.stopping import AdaEdlStop, ThresholdStop
from tests.control.algorithms.makers import TIERS
from tests.control.asking import ask


def test_a_deeper_arm_reveals_the_shallower_ones_and_none_above() -> None:
    arms = Arms(TIERS)
    assert arms.off == 0
    assert arms.below.tolist() == [-1, -1, 1, 2]
    assert arms.reveals.astype(int).tolist() == [[0, 0, 0, 0], [0, 1, 0, 0], [0, 1, 1, 0], [0, 1, 1, 1]]


def test_arms_of_another_drafter_or_stop_rule_reveal_nothing() -> None:
    stop = ThresholdStop(confidence=0.6)
    arms = Arms([3, 7, 3, 7, 3], drafters=[0, 0, 1, 0, 0], stops=[None, None, None, stop, stop])
    assert arms.off is None
    assert arms.reveals[1].tolist() == [True, True, False, False, False]
    assert arms.reveals[3].tolist() == [False, False, False, True, True]
    assert arms.below.tolist() == [-1, 0, -1, 4, -1]


def test_each_row_is_stopped_by_the_rule_of_its_arm() -> None:
    arms = Arms([0, 3, 7, 7], stops=[None, None, ThresholdStop(confidence=0.6), ThresholdStop(confidence=0.9)])
    table = arms.stop_table(np.array([2, 1, 3, 0]), np.array([7, 3, 7, 0]))
    assert ask(table, [0.7] * 4) == [True, True, False, True]


def test_no_table_is_made_where_no_row_drafts_with_a_stop_rule() -> None:
    arms = Arms([0, 3, 7], stops=[None, None, ThresholdStop(confidence=0.6)])
    assert arms.stop_table(np.array([0, 1]), np.array([0, 3])) is None
    assert arms.stop_table(np.array([2, 1]), np.array([0, 3])) is None


def test_a_stop_rule_of_several_arms_is_listed_once() -> None:
    shared, single = AdaEdlStop(), AdaEdlStop()
    assert Arms([3, 7, 3], stops=[shared, shared, single]).stop_rules == [shared, single]

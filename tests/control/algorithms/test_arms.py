"""Arms: what a file may list, which a round at another one tells of, and rounds in which rows play different kinds."""

from __future__ import annotations

import numpy as np

from adaptspec.control.algorithms.algorithm import Choice
from adaptspec.control.algorithms.arms import Arms
from adaptspec.control.stopping import ThresholdStop
from adaptspec.types import Reason
from tests.control.algorithms.makers import ladder
from tests.control.asking import ask
from tests.control.helpers import signals


def test_a_deeper_arm_tells_of_the_shallower_ones_and_of_none_above() -> None:
    arms = ladder()
    assert arms.off == 0
    assert arms.below.tolist() == [-1, -1, 1, 2]
    assert arms.reveals.astype(int).tolist() == [[0, 0, 0, 0], [0, 1, 0, 0], [0, 1, 1, 0], [0, 1, 1, 1]]


def test_arms_of_another_drafter_or_stop_are_strangers() -> None:
    stop = ThresholdStop(confidence=0.6)
    arms = Arms([3, 7, 3, 7, 3], drafters=[0, 0, 1, 0, 0], stops=[None, None, None, stop, stop])
    assert arms.off is None
    assert arms.reveals[1].tolist() == [True, True, False, False, False]
    assert arms.reveals[3].tolist() == [False, False, False, True, True]


def choice_of(arms: Arms, played: list[int]) -> Choice:
    return Choice(arms.depths[played], np.full(len(played), int(Reason.POLICY)))


def test_rows_with_a_stop_use_it_and_the_others_go_on() -> None:
    rule = ThresholdStop(confidence=0.6)
    arms = Arms([0, 3, 7, 7], stops=[None, None, rule, ThresholdStop(confidence=0.9)])
    played = [2, 1, 3, 0]
    choice = arms.play(choice_of(arms, played), np.array(played), signals([7, 7, 7, 7]))
    assert choice.depths.tolist() == [7, 3, 7, 0]
    assert ask(choice.stop, [0.7] * 3) == [True, True, False]

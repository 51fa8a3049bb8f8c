"""Arms: what a file may list, which a round at another one tells of, and rounds in which rows play different kinds."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from adaptspec.control.algorithms.algorithm import Choice
from adaptspec.control.algorithms.arms import Arms, NestedPolicy
from adaptspec.control.policy import BatchSignals, Decision, Policy
from adaptspec.control.rows import DrafterNumbers
from adaptspec.control.stopping import ThresholdStop
from adaptspec.decision_tables import StopTable
from adaptspec.types import FloatArray, IntArray, Reason, RoundRecord
from tests.control.algorithms.makers import ladder
from tests.control.asking import ask
from tests.control.helpers import record, signals


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


class Nested(Policy):
    """Drafts two with its only drafter, and remembers what it was told."""

    drafters = ("ngram",)
    max_depth = 2

    def __init__(self) -> None:
        self.rows: list[list[int]] = []
        self.records: list[RoundRecord] = []

    def decide(self, signals: BatchSignals) -> Decision:
        self.rows.append(signals.rows.tolist())
        size = len(signals.rows)
        stop = StopTable(confidence=np.full((size, 1), 0.9))
        twos: IntArray = np.minimum(np.full(size, 2), signals.limits)
        return Decision(twos, np.full(size, int(Reason.POLICY)), np.zeros(size, dtype=np.int64), stop)

    def learn(self, record: RoundRecord) -> None:
        self.records.append(record)

    def learned(self) -> dict[str, FloatArray]:
        return {}

    def restore(self, learned: Mapping[str, FloatArray]) -> None: ...


def choice_of(arms: Arms, played: list[int]) -> Choice:
    return Choice(arms.depths[played], np.full(len(played), int(Reason.POLICY)))


def test_rows_with_a_stop_use_it_and_the_others_go_on() -> None:
    rule = ThresholdStop(confidence=0.6)
    arms = Arms([0, 3, 7, 7], stops=[None, None, rule, ThresholdStop(confidence=0.9)])
    played = [2, 1, 3, 0]
    choice = arms.play(choice_of(arms, played), np.array(played), signals([7, 7, 7, 7]))
    assert choice.depths.tolist() == [7, 3, 7, 0]
    assert ask(choice.stop, [0.7] * 3) == [True, True, False]


def test_a_policy_decides_for_its_rows_only_and_learns_from_all_in_its_own_numbers() -> None:
    nested = Nested()
    numbers = DrafterNumbers(("ngram",), ("draft-model", "ngram"))
    arms = Arms([0, 2], policies=[None, NestedPolicy("nested", nested, numbers)])
    choice = arms.play(choice_of(arms, [0, 1, 1]), np.array([0, 1, 1]), signals([7, 7, 1], rows=[4, 5, 6]))
    assert nested.rows == [[5, 6]]
    assert choice.depths.tolist() == [0, 2, 1]
    assert choice.drafter.tolist()[1:] == [1, 1]
    assert ask(choice.stop, [0.0, 0.95, 0.5]) == [True, True, False]
    arms.learn(record([0, 2, 1], [0, 1, 1], rows=[4, 5, 6], drafter=[0, 1, 1]))
    assert nested.records[0].rows.tolist() == [4, 5, 6]
    assert nested.records[0].drafter.tolist() == [0, 0, 0]

"""Rounds of mixed arms: each row gets its own stop, or its own policy's decision."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from adaptspec.control.bandits.arms import Arms, NestedPolicy
from adaptspec.control.bandits.lanes import Lanes
from adaptspec.control.choosers.chooser import Choice
from adaptspec.control.numbering import DrafterNumbers
from adaptspec.control.policy import BatchSignals, Decision
from adaptspec.control.stopping.thresholds import ThresholdStop
from adaptspec.draft_tables import StopTable
from adaptspec.types import FloatArray, IntArray, Reason, RoundRecord
from tests.control.helpers import record, signals
from tests.control.stopping.asking import ask


class Nested:
    """Drafts two with its only drafter, and remembers what it was told."""

    drafters = ("ngram",)
    max_depth = 2

    def __init__(self) -> None:
        self.rows: list[list[int]] = []
        self.records: list[RoundRecord] = []

    def start(self, row: int, task: int) -> None: ...

    def finish(self, row: int) -> None: ...

    def decide(self, signals: BatchSignals) -> Decision:
        self.rows.append(signals.rows.tolist())
        size = len(signals.rows)
        twos: IntArray = np.minimum(np.full(size, 2), signals.limits)
        stop = StopTable(confidence=np.full((size, 1), 0.9))
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
    choice = Lanes(arms).choose(choice_of(arms, played), np.array(played), signals([7, 7, 7, 7]))
    assert choice.depths.tolist() == [7, 3, 7, 0]
    assert ask(choice.stop, [0.7] * 3) == [True, True, False]


def test_no_stop_where_nobody_brings_one_and_the_rule_itself_where_all_do() -> None:
    rule = ThresholdStop(confidence=0.6)
    arms = Arms([3, 7], stops=[None, rule])
    assert Lanes(arms).choose(choice_of(arms, [0, 0]), np.array([0, 0]), signals([7, 7])).stop is None
    whole = choice_of(arms, [1, 1])
    assert Lanes(arms).choose(whole, np.array([1, 1]), signals([7, 7])).stop is rule.table(whole)


def test_a_policy_decides_for_its_rows_only_and_learns_from_all_in_its_own_numbers() -> None:
    nested = Nested()
    numbers = DrafterNumbers(("ngram",), ("draft-model", "ngram"))
    arms = Arms([0, 2], policies=[None, NestedPolicy("nested", nested, numbers)])
    lanes = Lanes(arms)
    choice = lanes.choose(choice_of(arms, [0, 1, 1]), np.array([0, 1, 1]), signals([7, 7, 1], rows=[4, 5, 6]))
    assert nested.rows == [[5, 6]]
    assert choice.depths.tolist() == [0, 2, 1]
    assert choice.drafter is not None
    assert choice.drafter.tolist()[1:] == [1, 1]
    assert ask(choice.stop, [0.0, 0.95, 0.5]) == [True, True, False]
    lanes.learn(record([0, 2, 1], [0, 1, 1], rows=[4, 5, 6], drafter=[0, 1, 1]))
    assert nested.records[0].rows.tolist() == [4, 5, 6]
    assert nested.records[0].drafter.tolist() == [0, 0, 0]

"""Arms: what a file may list, which a round at another one tells of, and rounds in which rows play different kinds."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from pydantic import ValidationError

from adaptspec.control.algorithms.algorithm import Choice
from adaptspec.control.algorithms.arms import Arms, ArmSpec, NestedPolicy, build_arms
from adaptspec.control.policy import BatchSignals, Decision, Policy
from adaptspec.control.rows import DrafterNumbers
from adaptspec.control.stopping import ThresholdStop
from adaptspec.decision_tables import StopTable
from adaptspec.errors import PolicyError
from adaptspec.types import FloatArray, IntArray, Reason, RoundRecord
from tests.control.algorithms.makers import ladder, parts
from tests.control.asking import ask
from tests.control.helpers import record, signals


def specs(*arms: dict[str, object]) -> list[ArmSpec]:
    return [ArmSpec.model_validate(arm) for arm in arms]


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


def test_left_out_they_are_off_and_the_tiers() -> None:
    assert build_arms(None, parts()).depths.tolist() == [0, 1, 3, 7]


def test_arms_with_equal_stops_share_the_rule_and_so_a_family() -> None:
    rule = {"rule": "confidence", "threshold": 0.6}
    arms = build_arms(specs({"depth": 3, "stop": rule}, {"depth": 7, "stop": rule}, {"depth": 7}), parts())
    assert arms.stops[0] is arms.stops[1]
    assert arms.below.tolist() == [-1, 0, -1]


@pytest.mark.parametrize(
    ("arms", "says"),
    [
        ([{"depth": 3}, {"depth": 3}], "two arms are alike"),
        ([{"depth": 3, "drafter": "ngram"}], "add it to the policy's drafters"),
    ],
)
def test_what_does_not_fit_the_policy_is_said(arms: list[dict[str, object]], says: str) -> None:
    with pytest.raises(PolicyError, match=says):
        build_arms(specs(*arms), parts())


def test_stops_of_arms_and_of_the_policy_exclude_each_other() -> None:
    with pytest.raises(PolicyError, match="leave out the policy's stop"):
        build_arms(specs({"depth": 3, "stop": {"rule": "none"}}), parts(stops=True))


@pytest.mark.parametrize(
    "arm",
    [
        {},
        {"depth": 3, "policy": "goodput"},
        {"policy": "goodput", "drafter": "ngram"},
        {"depth": 3, "stop": {"rule": "marginal-goodput"}},
        {"depth": 65},
    ],
)
def test_an_arm_is_of_one_kind(arm: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        ArmSpec.model_validate(arm)


def test_a_policy_whose_drafter_the_outer_one_lacks_is_refused() -> None:
    class Nested(Policy):
        drafters = ("ngram",)
        max_depth = 5

    def nested(name: str) -> Policy:
        return Nested()

    with pytest.raises(PolicyError, match=r"\{policy: any\} wants the drafter 'ngram'; .*: \[draft-model, ngram\]"):
        build_arms(specs({"policy": "any"}), parts(policy=nested))
    arms = build_arms(specs({"policy": "any"}, {"depth": 0}), parts(policy=nested, drafters=("draft-model", "ngram")))
    assert arms.depths.tolist() == [5, 0]
    assert arms.opaque.tolist() == [True, False]
    assert arms.off == 1


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


def test_no_stop_where_nobody_brings_one_and_the_rule_itself_where_all_do() -> None:
    rule = ThresholdStop(confidence=0.6)
    arms = Arms([3, 7], stops=[None, rule])
    assert arms.play(choice_of(arms, [0, 0]), np.array([0, 0]), signals([7, 7])).stop is None
    whole = choice_of(arms, [1, 1])
    assert arms.play(whole, np.array([1, 1]), signals([7, 7])).stop is rule.table(whole)


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

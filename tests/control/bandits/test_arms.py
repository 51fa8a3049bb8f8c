"""Arms: what a file may list, and which arms a round at another one tells of."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from adaptspec.control.bandits.arms import Arms, ArmSpec, build_arms
from adaptspec.control.policy import Policy
from adaptspec.control.stopping.thresholds import ThresholdStop
from adaptspec.errors import PolicyError
from tests.control.bandits.makers import ladder, parts


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
        ([{"policy": "goodput"}], "nest too deep"),
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
    class Nested:
        drafters = ("ngram",)
        max_depth = 5

    def nested(name: str) -> Policy:
        return Nested()  # type: ignore[return-value]

    with pytest.raises(PolicyError, match=r"\{policy: any\} wants the drafter 'ngram'; .*: \[draft-model, ngram\]"):
        build_arms(specs({"policy": "any"}), parts(policy=nested))
    arms = build_arms(specs({"policy": "any"}, {"depth": 0}), parts(policy=nested, drafters=("draft-model", "ngram")))
    assert arms.depths.tolist() == [5, 0]
    assert arms.opaque.tolist() == [True, False]
    assert arms.off == 1

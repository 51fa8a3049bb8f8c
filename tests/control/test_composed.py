"""A composed policy: the order in which its parts have their say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from adaptspec.control.algorithms.depth_rules import Static
from adaptspec.control.algorithms.goodput import Goodput, GoodputSettings
from adaptspec.control.ceilings import Bounds, Ceilings, Dwell
from adaptspec.control.composed import ComposedPolicy
from adaptspec.control.draft_temperature import DraftTemperature
from adaptspec.control.guard import Guard, GuardSpec
from adaptspec.control.language.build import build_policy, parse_policy_spec
from adaptspec.control.policy import Policy
from adaptspec.control.stopping import AdaEdlStop, MarginalGoodputStop, ThresholdStop
from adaptspec.control.tasks import Labels, Names
from adaptspec.errors import StateError
from adaptspec.types import Reason
from tests.control.asking import ask, drafted
from tests.control.helpers import record, signals, table


def test_plain_composition_passes_the_algorithm_through() -> None:
    policy = ComposedPolicy(Static(3), ("draft-model",))
    decision = policy.decide(signals([7, 2]))
    assert decision.depths.tolist() == [3, 2]
    assert decision.reasons.tolist() == [Reason.FIXED, Reason.FIXED]
    assert decision.stop is None
    assert (policy.max_depth, policy.drafters) == (3, ("draft-model",))


def test_a_batch_beyond_the_ceiling_does_not_speculate() -> None:
    """Rows under other policies count: they share the round."""
    ceilings = Ceilings(Bounds.model_validate({"max-batch-size": 2}), {}, 1)
    policy = ComposedPolicy(Static(3), ("draft-model",), ceilings=ceilings)
    assert policy.decide(signals([7, 7])).depths.tolist() == [3, 3]
    beyond = policy.decide(signals([7, 7], beside=1))
    assert beyond.depths.tolist() == [0, 0]
    assert beyond.reasons.tolist() == [Reason.CEILING] * 2


@pytest.mark.parametrize("rows", [1, 3])
def test_a_ceiling_holds_for_what_a_lookup_offers(rows: int) -> None:
    """However much it found: a request that is a long copy of its prompt is no exception."""
    algorithm = Goodput(table(), rows, 1, GoodputSettings(drafters=("ngram",)))
    ceilings = Ceilings(Bounds.model_validate({"depth-by-batch-size": [[1, 8, 2]]}), {}, 1)
    policy = ComposedPolicy(algorithm, ("ngram",), ceilings=ceilings)
    policy.start(0)
    seen = signals([7] * rows)
    decision = policy.decide(replace(seen, found=np.full((2, rows), 7)))
    assert decision.depths.tolist() == [2] * rows


def test_the_guard_overrules_with_its_reason() -> None:
    guard = Guard(GuardSpec.model_validate({"never-slower": {}}), table())
    policy = ComposedPolicy(Static(3), ("draft-model",), guard=guard)
    for _ in range(50):
        decision = policy.decide(signals([7]))
        policy.learn(record(decision.depths.tolist(), [0]))
    assert decision.depths.tolist() == [0]
    assert decision.reasons.tolist() == [Reason.GUARD]
    seen = []
    for _ in range(400):
        decision = policy.decide(signals([7]))
        seen.append(int(decision.reasons[0]))
        policy.learn(record(decision.depths.tolist(), [0]))
    assert Reason.PROBE in seen


def test_dwell_and_task_stops() -> None:
    strict = {1: ThresholdStop(confidence=0.9)}
    policy = ComposedPolicy(Static(3), ("draft-model",), dwell=Dwell(2, 2), task_stops=strict)
    policy.start(0)
    policy.start(1)
    decision = policy.decide(signals([7, 7], tasks=[1, 0]))
    assert ask(decision.stop, [0.5, 0.5]) == [False, True]
    assert policy.decide(signals([7, 7], tasks=[1, 0])).stop is decision.stop, "kept while nothing changes"
    assert ask(policy.decide(signals([7, 7], rows=[1, 0], tasks=[0, 1])).stop, [0.5, 0.5]) == [True, False]
    policy.finish(0)


def test_the_ratio_rule_works_with_a_algorithm_that_knows_no_costs() -> None:
    """Another goodput has the values: sure drafts go on, hopeless ones do not."""
    values = Goodput(table(), 1, 1)
    policy = ComposedPolicy(Static(7), ("draft-model",), stop=MarginalGoodputStop(), values=values)
    policy.start(0)
    for _ in range(40):
        policy.decide(signals([7]))
        policy.learn(record([5], [4]))
    stop = policy.decide(signals([7])).stop
    assert drafted(stop, [0.95, 0.05, 0.95]) == 2


def test_the_stop_of_a_task_learns_from_its_own_rows() -> None:
    rule = AdaEdlStop()
    policy = ComposedPolicy(Static(3), ("draft-model",), task_stops={1: rule})
    policy.start(0)
    policy.start(1)
    start = rule.threshold
    policy.learn(record([3], [0], rows=[1], tasks=[0]))
    assert rule.threshold == start
    policy.learn(record([3, 3], [0, 3], rows=[0, 1], tasks=[1, 0]))
    assert rule.threshold > start


def test_a_draft_temperature_is_set_only_where_something_is_drafted() -> None:
    policy = ComposedPolicy(Static(3), ("draft-model",), temperature=DraftTemperature(0.8))
    warm = policy.decide(signals([7])).temperature
    assert warm is not None
    assert warm.at(np.zeros(2, dtype=np.int64), np.zeros(2)).tolist() == [0.8, 0.8]
    assert policy.decide(signals([0])).temperature is None


CODE = Labels(Names(("code",)))
LEARNING = (
    "apiVersion: adaptspec.dev/v1\nkind: SpeculationPolicy\nmetadata: {name: mine}\nspec:\n"
    "  choose: {algorithm: static, depth: 3}\n  stop: {rule: marginal-goodput}\n  draft-temperature: {mode: dynamic}\n"
    "  tasks: {code: {stop: {rule: adaedl}}}\n"
)


def taught() -> Policy:
    """A algorithm that learns nothing, among parts that do: stop rules, outlook, draft temperature."""
    policy = build_policy(parse_policy_spec(LEARNING), table(), 2, CODE)
    policy.start(0)
    policy.start(1)
    for number in range(40):
        policy.decide(signals([7, 7], tasks=[1, 0]))
        scores = np.full((2, 3, 8), np.nan)
        scores[:, 0] = np.linspace(0.2, 0.9, 16).reshape(2, 8)
        policy.learn(replace(record([3, 3], [3, number % 3], tasks=[1, 0]), temperature_scores=scores))
    return policy


def test_what_parts_beside_the_algorithm_have_learned_comes_back() -> None:
    """After a restart the rules go by the same numbers; a state of before they were kept changes nothing."""
    old, new = taught(), build_policy(parse_policy_spec(LEARNING), table(), 2, CODE)
    fresh = new.learned()
    assert {name.partition("/")[0] for name in fresh} == {"@outlook", "@temperature", "@stop-of-task-1"}
    new.restore({})
    assert all((new.learned()[name] == values).all() for name, values in fresh.items())
    new.restore(old.learned())
    for name, values in old.learned().items():
        assert (values != fresh[name]).any(), name
        np.testing.assert_allclose(new.learned()[name], values)


def test_states_of_two_replicas_are_the_state_of_both() -> None:
    """Also of the one number that is no count: lambda becomes the mean."""
    one, other = (
        taught().learned(),
        build_policy(parse_policy_spec(LEARNING), table(), 2, CODE).learned(),
    )
    both = build_policy(parse_policy_spec(LEARNING), table(), 2, CODE)
    both.restore({name: values + other[name] for name, values in one.items()})
    name = "@stop-of-task-1/threshold"
    np.testing.assert_allclose(both.learned()[name], (one[name] + other[name]) / 2.0)
    np.testing.assert_allclose(both.learned()["@outlook/acceptance"], one["@outlook/acceptance"])


@pytest.mark.parametrize("name", ["@outlook/calibration", "@outlook/acceptance", "@temperature/seen"])
def test_parts_are_restored_all_or_none(name: str) -> None:
    policy, wrong = taught(), taught().learned()
    before = policy.learned()
    wrong = {**{key: values * 2.0 for key, values in wrong.items()}, name: -wrong[name]}
    with pytest.raises(StateError, match="negative"):
        policy.restore(wrong)
    assert all((policy.learned()[key] == values).all() for key, values in before.items())


def test_what_another_stop_rule_has_learned_is_left_alone() -> None:
    """The signature of a policy does not tell stop rules apart: what was counted for one is nothing to the other."""
    other = build_policy(parse_policy_spec(LEARNING.replace("marginal-goodput", "adaedl")), table(), 2, CODE)
    fresh = other.learned()["@stop/threshold"]
    other.restore(taught().learned())
    assert (other.learned()["@stop/threshold"] == fresh).all()
    assert other.learned()["@temperature/seen"].any()

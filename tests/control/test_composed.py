"""A composed policy: the order in which its parts have their say."""

from __future__ import annotations

import numpy as np

from adaptspec.control.ceilings import Bounds, Ceilings
from adaptspec.control.choosers.static import Static
from adaptspec.control.composed import ComposedPolicy
from adaptspec.control.draft_temperature import FixedTemperature
from adaptspec.control.guards import Dwell, GuardSettings, NeverSlower, SwitchGuard
from adaptspec.control.stopping import ConfidenceStop, MarginalGoodputStop
from adaptspec.control.stopping.adaedl import AdaEdlStop
from adaptspec.control.stopping.outlook import OutlookKeeper
from adaptspec.types import Reason
from tests.control.helpers import record, signals, table


def test_plain_composition_passes_the_chooser_through() -> None:
    policy = ComposedPolicy(Static(3), ("draft-model",), 2)
    decision = policy.decide(signals([7, 2]))
    assert decision.depths.tolist() == [3, 2]
    assert decision.reasons.tolist() == [Reason.FIXED, Reason.FIXED]
    assert decision.stop is None
    assert (policy.max_depth, policy.drafters) == (3, ("draft-model",))


def test_a_batch_beyond_the_ceiling_does_not_speculate() -> None:
    """Rows under other policies count: they share the round."""
    policy = ComposedPolicy(Static(3), ("draft-model",), 4, ceilings=Ceilings(Bounds(max_batch_size=2), {}, 1))
    assert policy.decide(signals([7, 7])).depths.tolist() == [3, 3]
    beyond = policy.decide(signals([7, 7], beside=1))
    assert beyond.depths.tolist() == [0, 0]
    assert beyond.reasons.tolist() == [Reason.CEILING] * 2


def test_the_guard_overrules_with_its_reason() -> None:
    guard = SwitchGuard(GuardSettings(NeverSlower()), table())
    policy = ComposedPolicy(Static(3), ("draft-model",), 1, guard=guard)
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
    policy = ComposedPolicy(Static(3), ("draft-model",), 2, dwell=Dwell(2, 2), task_stops={1: ConfidenceStop(0.9)})
    policy.start(0, 1)
    policy.start(1, 0)
    decision = policy.decide(signals([7, 7]))
    assert decision.stop is not None
    going = decision.stop(1, np.array([0, 1]), np.array([0.5, 0.5]), np.zeros(2))
    assert going.tolist() == [False, True]
    policy.finish(0)


def test_the_ratio_rule_works_with_a_chooser_that_knows_no_costs() -> None:
    """A keeper makes the outlook: sure drafts go on, hopeless ones do not."""
    keeper = OutlookKeeper(table(), "draft-model", 1, 1, 7)
    policy = ComposedPolicy(Static(7), ("draft-model",), 1, stop=MarginalGoodputStop(), keeper=keeper)
    policy.start(0, 0)
    for _ in range(40):
        policy.decide(signals([7]))
        policy.learn(record([5], [4]))
    stop = policy.decide(signals([7])).stop
    assert stop is not None
    assert stop(1, np.array([0]), np.array([0.95]), np.zeros(1)).tolist() == [True]
    assert stop(2, np.array([0]), np.array([0.05]), np.zeros(1)).tolist() == [False]


def test_the_stop_of_a_task_learns_from_its_own_rows() -> None:
    rule = AdaEdlStop()
    policy = ComposedPolicy(Static(3), ("draft-model",), 2, task_stops={1: rule})
    policy.start(0, 1)
    policy.start(1, 0)
    start = rule.threshold
    policy.learn(record([3], [0], rows=[1]))
    assert rule.threshold == start
    policy.learn(record([3, 3], [0, 3], rows=[0, 1]))
    assert rule.threshold > start


def test_a_draft_temperature_is_set_only_where_something_is_drafted() -> None:
    policy = ComposedPolicy(Static(3), ("draft-model",), 1, temperature=FixedTemperature(0.8))
    warm = policy.decide(signals([7])).temperature
    assert warm is not None
    assert warm(np.arange(2), np.zeros(2)).tolist() == [0.8, 0.8]
    assert policy.decide(signals([0])).temperature is None

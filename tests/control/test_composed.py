"""A composed policy: the order in which its parts have their say."""

from __future__ import annotations

import numpy as np

from adaptspec.control.choosers.static import Static
from adaptspec.control.composed import ComposedPolicy
from adaptspec.control.guards import Dwell, GuardSettings, NeverSlower, SwitchGuard
from adaptspec.control.stopping import ConfidenceStop
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
    policy = ComposedPolicy(Static(3), ("draft-model",), 4, max_batch_size=2)
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

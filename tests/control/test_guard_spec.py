"""`guard:` of a policy file reaches the guards it names."""

from __future__ import annotations

import numpy as np

from adaptspec.control.labels import Labels, Names
from adaptspec.control.spec import build_policy, parse_policy_spec
from adaptspec.types import Reason
from tests.control.helpers import record, signals, table

HEAD = "apiVersion: adaptspec.dev/v1\nkind: SpeculationPolicy\nmetadata: {name: mine}\n"


def decided(body: str, limits: list[int], tasks: list[int] | None = None) -> tuple[list[int], list[int]]:
    spec = parse_policy_spec(f"{HEAD}spec: {{choose: {{algorithm: static, depth: 3}}, {body}}}")
    policy = build_policy(spec, table(), len(limits), Labels(Names(("code", "story"))))
    for row in range(len(limits)):
        policy.start(row)
    decision = policy.decide(signals(limits, tasks=tasks))
    return decision.depths.tolist(), decision.reasons.tolist()


def test_ceilings_lower_depths_and_say_so() -> None:
    """The whole round by its size, single rows by their task; the others keep their own reason."""
    assert decided("guard: {max-batch-size: 1}", [7, 7]) == ([0, 0], [Reason.CEILING] * 2)
    assert decided("guard: {depth-by-batch-size: [[1, 1, 3], [2, 8, 2]]}", [7, 1]) == (
        [2, 1],
        [Reason.CEILING, Reason.FIXED],
    )
    assert decided("tasks: {code: {max-depth: 1}, story: {off: true}}", [7, 7, 7], [0, 1, 2]) == (
        [3, 1, 0],
        [Reason.FIXED, Reason.CEILING, Reason.CEILING],
    )


def test_rules_that_are_not_asked_for_never_interfere() -> None:
    """No guard at all, rather than one that watches for nothing."""
    spec = parse_policy_spec(f"{HEAD}spec: {{choose: {{algorithm: static, depth: 3}}}}")
    assert spec.spec.guard.switch(table()) is None
    assert not spec.spec.guard.bounds().any


def test_the_switch_waits_while_a_ceiling_holds() -> None:
    """Rounds that could not draft are neither idling nor a probe that was declined."""
    body = "guard: {max-batch-size: 1, never-slower: {}, probe: {after-tokens: 64}}"
    spec = parse_policy_spec(f"{HEAD}spec: {{choose: {{algorithm: static, depth: 3}}, {body}}}")
    policy = build_policy(spec, table(), 2)
    reasons = []
    for number in range(400):
        limits = [7, 7] if 100 <= number < 300 else [7]
        decision = policy.decide(signals(limits))
        reasons.append(int(decision.reasons[0]))
        policy.learn(record(decision.depths.tolist(), [0] * len(limits)))
    assert set(reasons[100:300]) == {int(Reason.CEILING)}
    assert Reason.GUARD in reasons[:100]
    assert reasons[300] in (Reason.GUARD, Reason.PROBE)
    assert np.mean([reason == Reason.FIXED for reason in reasons[300:]]) < 0.5

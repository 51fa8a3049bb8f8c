"""`tasks:` of a policy file: every override reaches the rows of its task, and no others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from adaptspec.control.language.build import build_policy, parse_policy_spec
from adaptspec.control.policy import Policy
from adaptspec.control.state import signature
from adaptspec.control.tasks import Labels, Names
from adaptspec.types import Reason
from tests.control.asking import ask
from tests.control.helpers import signals, table

HEAD = "apiVersion: adaptspec.dev/v1\nkind: SpeculationPolicy\nmetadata: {name: mine}\n"
LABELS = Labels(Names(("code", "story")))
CODE, STORY = 1, 2
TASKS = (CODE, STORY, 0)


def parsed(tasks: str, more: str = "", choose: str = "{algorithm: static, depth: 5}") -> str:
    return f"{HEAD}spec:\n  choose: {choose}\n{more}  tasks: {tasks}\n"


def built(tasks: str, more: str = "") -> Policy:
    """A policy at depth 5 with a row of code, one of stories and one of no task."""
    policy = build_policy(parse_policy_spec(parsed(tasks, more), "p", LABELS), table(), 4, LABELS)
    for row in range(3):
        policy.start(row)
    return policy


def test_tiers_of_a_task_keep_its_rows_to_them() -> None:
    """Also where a limit lies between two of them; the reason says whose doing it was."""
    policy = built("{code: {tiers: [0, 1, 3]}}")
    decision = policy.decide(signals([7, 7, 7], tasks=TASKS))
    assert decision.depths.tolist() == [3, 5, 5]
    assert decision.reasons.tolist() == [Reason.CEILING, Reason.FIXED, Reason.FIXED]
    assert policy.decide(signals([2, 2, 2], tasks=TASKS)).depths.tolist() == [1, 2, 2]


def test_the_guard_of_a_task_takes_the_place_of_the_policys() -> None:
    """Tighter or looser; what it leaves out stays as it was."""
    policy = built(
        "{code: {guard: {max-batch-size: 2}}, story: {guard: {max-batch-size: 8}}}", "  guard: {max-batch-size: 4}\n"
    )
    assert policy.decide(signals([7, 7, 7], tasks=TASKS)).depths.tolist() == [0, 5, 5]
    assert policy.decide(signals([7, 7, 7], tasks=TASKS, beside=2)).depths.tolist() == [0, 5, 0]
    policy = built(
        "{code: {guard: {depth-by-batch-size: [[1, 8, 2]]}}, story: {guard: {min-free-memory: 0.0}}}",
        "  guard: {min-free-memory: 0.1}\n",
    )
    assert policy.decide(replace(signals([7, 7, 7], tasks=TASKS), free_memory=0.05)).depths.tolist() == [0, 5, 0]
    assert policy.decide(signals([7, 7, 7], tasks=TASKS)).depths.tolist() == [2, 5, 5]


def test_the_stop_of_a_task_holds_for_its_rows() -> None:
    policy = built("{code: {stop: {rule: confidence, threshold: 0.9}}}")
    assert ask(policy.decide(signals([7, 7, 7], tasks=TASKS)).stop, [0.5] * 3) == [False, True, True]


def test_a_task_dwells_as_long_as_it_says() -> None:
    """Depths that fall with the batch and come back: code keeps its own for two rounds more."""
    choose = "{algorithm: batch-table, schedule: [[1, 3, 5], [4, 8, 1]]}"
    text = parsed("{code: {guard: {dwell-rounds: 3}}}", choose=choose)
    policy = build_policy(parse_policy_spec(text, "p", LABELS), table(), 4, LABELS)
    for row in range(2):
        policy.start(row)
    assert policy.decide(signals([7, 7], tasks=TASKS[:2])).depths.tolist() == [5, 5]
    full = [policy.decide(signals([7, 7], tasks=TASKS[:2], beside=2)) for _ in range(3)]
    assert [decision.depths.tolist() for decision in full] == [[5, 1], [5, 1], [1, 1]]
    assert full[0].reasons.tolist() == [Reason.DWELL, Reason.FIXED]


@pytest.mark.parametrize("zero", ["off", "false", "0", '"off"'])
def test_off_is_a_tier(zero: str) -> None:
    """However it is spelt: programs that read YAML 1.1 make false of it."""
    text = (
        f"{HEAD}spec: {{choose: {{algorithm: goodput}}, tiers: [{zero}, 1, 3], tasks: {{code: {{tiers: [{zero}]}}}}}}"
    )
    spec = parse_policy_spec(text, "p", LABELS)
    assert spec.spec.tiers == [0, 1, 3]
    assert spec.spec.tasks["code"].deepest == 0


def test_the_verification_of_a_task_is_told_by_its_name() -> None:
    """And what was learned under another is not mixed with it; those without any keep the name they had."""
    spec = parse_policy_spec(parsed("{code: {verification: {method: rejection}}, story: {off: true}}"))
    assert {name: one.method for name, one in spec.task_verifications.items()} == {"code": "rejection"}
    plain = parse_policy_spec(parsed("{story: {off: true}}"))
    assert plain.task_verifications == {}
    assert signature(spec) != signature(plain)

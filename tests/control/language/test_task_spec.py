"""`tasks:` of a policy file: every override reaches the rows of its task, and no others."""

from __future__ import annotations

import pytest

from adaptspec.control.language.loader import build_policy, parse_policy_spec
from adaptspec.control.policy import Policy
from adaptspec.control.tasks import TaskNames
from adaptspec.decision import Reason
from tests.control.asking import ask
from tests.control.helpers import signals, table

HEAD = "apiVersion: adaptspec.dev/v1\nkind: SpeculationPolicy\nmetadata: {name: mine}\n"
TASK_NAMES = TaskNames(("code", "story"))
CODE, STORY = 1, 2
TASKS = (CODE, STORY, 0)


def parsed(tasks: str, more: str = "", choose: str = "{algorithm: static, depth: 5}") -> str:
    return f"{HEAD}spec:\n  choose: {choose}\n{more}  tasks: {tasks}\n"


def built(tasks: str, more: str = "") -> Policy:
    """A policy at depth 5 with a row of code, one of stories and one of no task."""
    policy = build_policy(parse_policy_spec(parsed(tasks, more), "p", TASK_NAMES), table(), 4, TASK_NAMES)
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


def test_the_stop_of_a_task_holds_for_its_rows() -> None:
    policy = built("{code: {stop: {rule: confidence, threshold: 0.9}}}")
    assert ask(policy.decide(signals([7, 7, 7], tasks=TASKS)).stop, [0.5] * 3) == [False, True, True]


@pytest.mark.parametrize("zero", ["off", "false", "0", '"off"'])
def test_off_is_a_tier(zero: str) -> None:
    """However it is spelt: programs that read YAML 1.1 make false of it."""
    text = (
        f"{HEAD}spec: {{choose: {{algorithm: goodput}}, tiers: [{zero}, 1, 3], tasks: {{code: {{tiers: [{zero}]}}}}}}"
    )
    spec = parse_policy_spec(text, "p", TASK_NAMES)
    assert spec.spec.tiers == [0, 1, 3]
    assert spec.spec.tasks["code"].depths == [0]

"""Keys and values of earlier versions: each is refused where it stands, with a sentence on what to write instead."""

from __future__ import annotations

import pytest

from adaptspec.control.language.loader import parse_policy_spec
from adaptspec.control.language.schema import REMOVED
from adaptspec.errors import PolicyError
from tests.policies.world import HEADER

SLO = "choose: {algorithm: slo, time-per-output-token-ms: 20, %s}"
GUARD = "choose: goodput\n  guard: {%s}"
TASK = "choose: goodput\n  tasks: {code: {%s}}"
HEAT = "choose: goodput\n  draft-temperature: {mode: dynamic, range: [0.8, 1.2], %s}"
# By the entry of the table: a policy that has it, and the path where it stands.
CASES = {
    "spec.choose.algorithm: hedge": ("choose: hedge", "spec.choose"),
    "spec.choose.algorithm: nightjar": ("choose: {algorithm: nightjar, seed: 1}", "spec.choose.algorithm"),
    "spec.choose.*.arms.*.policy": ("choose: {algorithm: exp3, arms: [{policy: off}]}", "spec.choose.arms.0.policy"),
    "spec.choose.*.horizon-rounds": ("choose: {algorithm: linucb, horizon-rounds: 8}", "spec.choose.horizon-rounds"),
    "spec.choose.*.prior-rounds": ("choose: {algorithm: thompson, prior-rounds: 8}", "spec.choose.prior-rounds"),
    "spec.choose.ucb.window": ("choose: {algorithm: ucb, window: 100}", "spec.choose.window"),
    "spec.choose.*.scope: batch-bucket": ("choose: {algorithm: ucb, scope: batch-bucket}", "spec.choose.scope"),
    "spec.choose.goodput.optimism": ("choose: {algorithm: goodput, optimism: 0.1}", "spec.choose.optimism"),
    "spec.choose.goodput.discount": ("choose: {algorithm: goodput, discount: 0.9}", "spec.choose.discount"),
    "spec.choose.slo.horizon-tokens": (SLO % "horizon-tokens: 8", "spec.choose.horizon-tokens"),
    "spec.choose.slo.margin": (SLO % "margin: 0.1", "spec.choose.margin"),
    "spec.choose.slo.discount": (SLO % "discount: 0.9", "spec.choose.discount"),
    "spec.choose.slo.prior": (SLO % "prior: {weight: 8}", "spec.choose.prior"),
    "spec.guard.disable-below-acceptance": (
        GUARD % "disable-below-acceptance: 0.2",
        "spec.guard.disable-below-acceptance",
    ),
    "spec.guard.min-free-memory": (GUARD % "min-free-memory: 0.1", "spec.guard.min-free-memory"),
    "spec.guard.dwell-rounds": (GUARD % "dwell-rounds: 4", "spec.guard.dwell-rounds"),
    "spec.tasks.*.guard": (TASK % "guard: {max-batch-size: 2}", "spec.tasks.code.guard"),
    "spec.when.*.batch-size": (
        "choose: goodput\n  when: [{batch-size: {at-least: 9}, use: off}]",
        "spec.when.0.batch-size",
    ),
    "spec.draft-temperature.dynamic.score-every": (HEAT % "score-every: 8", "spec.draft-temperature.score-every"),
    "spec.draft-temperature.dynamic.gain": (HEAT % "gain: 0.5", "spec.draft-temperature.gain"),
    "spec.tasks.*.verification": (TASK % "verification: coupled", "spec.tasks.code.verification"),
    "spec.rollout.mode: shadow": ("choose: goodput\n  rollout: {mode: shadow}", "spec.rollout.mode"),
}


def test_every_removed_key_has_a_case() -> None:
    assert list(CASES) == list(REMOVED)


@pytest.mark.parametrize("removed", CASES)
def test_what_was_removed_is_refused_with_what_to_write_instead(removed: str) -> None:
    text, path = CASES[removed]
    with pytest.raises(PolicyError) as raised:
        parse_policy_spec(f"{HEADER}  {text}\n", "mine.yaml")
    problems = [line for line in str(raised.value).splitlines() if f": {path}: there is no " in line]
    assert [problem.endswith(f" any more; {REMOVED[removed]}") for problem in problems] == [True]


def test_a_removed_policy_of_an_arm_is_its_only_problem() -> None:
    with pytest.raises(PolicyError) as raised:
        parse_policy_spec(f"{HEADER}  choose: {{algorithm: exp3, arms: [{{policy: off}}, {{drafter: ngram}}]}}\n", "p")
    assert [problem.split(": ")[1] for problem in str(raised.value).splitlines()] == [
        "spec.choose.arms.0.policy",
        "spec.choose.arms.1",
    ]

"""What policies have learned goes on in another process, all of it or nothing; replicas' counts add."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from adaptspec.control.language.library import shipped_policies
from adaptspec.control.language.loader import build_policy, parse_policy_spec
from adaptspec.control.policy import Policy
from adaptspec.control.tasks import TaskNames
from adaptspec.errors import StateError
from tests.control.helpers import record, signals, table

HEAD = "apiVersion: adaptspec.dev/v1\nkind: SpeculationPolicy\nmetadata: {name: mine}\nspec:\n"
# An algorithm that learns nothing, among parts that do: stop rules, outlook.
PARTS = (
    f"{HEAD}  choose: {{algorithm: static, depth: 3}}\n  stop: {{rule: marginal-goodput}}\n"
    "  tasks: {code: {stop: {rule: adaedl}}}\n"
)
NOTHING = ("entropy-gate", "lookahead", "off", "sglang-ema", "static-3", "vllm-batch-table")
TEXTS = {path.stem: path.read_text() for path in shipped_policies()} | {"parts": PARTS}
LEARNING = sorted(TEXTS.keys() - {*NOTHING})


def built(text: str) -> Policy:
    task_names = TaskNames()
    spec = parse_policy_spec(text, "p", task_names)
    return build_policy(spec, table(), 2, task_names)


def taught(name: str, rounds: int = 40) -> Policy:
    """A policy after rounds of two requests, one of them about code."""
    policy, found = built(TEXTS[name]), np.array([[2, 3], [2, 3]])
    code = TaskNames().number("code")
    for row in range(2):
        policy.start(row)
    for number in range(1, 1 + rounds):
        decision = policy.decide(signals([7, 7], tasks=[code, 0], found=[2, 3]))
        depths = np.maximum(decision.depths, 0).tolist()
        played = record(depths, [depths[0], min(depths[1], number % 3)], tasks=[code, 0])
        played = replace(
            played, drafter=decision.drafter, shadow=found // 2, shadow_drafted=found, stated=np.full((2, 2, 7), 0.8)
        )
        policy.learn(played, decision.memo)
    return policy


def changed(policy: Policy, other: Policy) -> set[str]:
    """Names of what the two know otherwise."""
    before, after = policy.learned(), other.learned()
    assert before.keys() == after.keys()
    return {name for name, values in before.items() if not np.array_equal(values, after[name])}


@pytest.mark.parametrize("name", LEARNING)
def test_a_policy_goes_on_where_it_stopped(name: str) -> None:
    old, new = taught(name), built(TEXTS[name])
    assert changed(old, new)
    new.restore(old.learned())
    assert not changed(old, new)


@pytest.mark.parametrize("name", NOTHING)
def test_policies_that_learn_nothing_say_so(name: str) -> None:
    """What another policy of that name learned is refused."""
    policy = taught(name)
    assert policy.learned() == {}
    policy.restore({})
    with pytest.raises(StateError, match="learns nothing"):
        policy.restore({"acceptance": np.ones(3)})


@pytest.mark.parametrize("name", LEARNING)
def test_a_damaged_state_changes_nothing(name: str) -> None:
    policy, worse = taught(name, 20), taught(name).learned()
    before = {key: values.copy() for key, values in policy.learned().items()}
    for key, values in worse.items():
        for damaged in (-values, values + np.inf) if values.any() else ():
            with pytest.raises(StateError):
                policy.restore({**worse, key: damaged})
            assert all(np.array_equal(policy.learned()[name], own) for name, own in before.items()), key


def test_a_state_of_other_arms_is_refused() -> None:
    policy, state = taught("goodput", 20), taught("goodput").learned()
    before = policy.learned()["lookups"].copy()
    others = ({}, {**state, "more": np.ones(3)}, {**state, "acceptance": state["acceptance"][:1]})
    for other, problem in zip(others, ("missing", "more cannot be restored", "shape"), strict=True):
        with pytest.raises(StateError, match=problem):
            policy.restore(other)
    assert np.array_equal(policy.learned()["lookups"], before)


def test_what_optional_parts_learned_is_theirs_alone() -> None:
    """A state without them, or of another stop rule, leaves them as they are."""
    policy, fresh = built(TEXTS["parts"]), built(TEXTS["parts"])
    policy.restore({})
    assert not changed(policy, fresh)
    other = built(PARTS.replace("marginal-goodput", "adaedl"))
    threshold = other.learned()["@stop/threshold"].copy()
    state = taught("parts").learned()
    other.restore(state)
    assert np.array_equal(other.learned()["@stop/threshold"], threshold)
    own = "@stop-of-task-2/threshold"
    assert np.array_equal(other.learned()[own], state[own])


def test_states_of_two_replicas_are_the_state_of_both() -> None:
    """Counts add; of a threshold, which is no count, the mean remains."""
    one, two, both = taught("parts", 20).learned(), taught("parts").learned(), built(TEXTS["parts"])
    both.restore({key: values + two[key] for key, values in one.items()})
    threshold = next(key for key in one if key.endswith("threshold"))
    np.testing.assert_allclose(both.learned()[threshold], (one[threshold] + two[threshold]) / 2.0)
    counts = "@outlook/acceptance"
    np.testing.assert_allclose(both.learned()[counts], one[counts] + two[counts])

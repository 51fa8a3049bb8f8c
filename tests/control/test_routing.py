"""Routing: a request has one policy, settled when it arrives, by name, `when:`, canary or default."""

from __future__ import annotations

import pytest

from adaptspec.control.controller import Controller
from adaptspec.control.language.loader import build_policy, parse_policy_spec
from adaptspec.control.rollout import CanarySpec
from adaptspec.control.routing import Router, routes_of, with_used
from adaptspec.control.tasks import TaskNames
from adaptspec.errors import ConfigError, PolicyError
from adaptspec.request import Request, SpeculationParams
from tests.control.helpers import signals, table
from tests.policies.world import HEADER

STATIC = HEADER + "  choose: {algorithm: static, depth: 5}\n"
DRAFTERS = ("draft-model", "ngram")


def router(when: str) -> Router:
    return Router("tested", {}, routes_of(parse_policy_spec(f"{STATIC}  when: {when}\n", "p")))


def asked(prompt: int = 1, key: str | None = None, task: str | None = None, policy: str | None = None) -> Request:
    return Request("r", (1,) * prompt, speculation=SpeculationParams(policy, task), key=key)


def test_a_route_goes_by_prompt_length() -> None:
    lengths = router("[{prompt-tokens: {at-least: 100}, use: static-3}, {prompt-tokens: {at-most: 1}, use: off}]")
    assert [lengths.policy_of(asked(size)) for size in (1, 2, 99, 100)] == ["off", "tested", "tested", "static-3"]


def test_a_route_goes_by_task() -> None:
    """That which the request names, or which was detected; `other` are requests of no known task."""
    tasks = router("[{task: [code, json], use: static-3}, {task: other, use: off}]")
    assert [tasks.policy_of(asked(task=task)) for task in ("code", "json", "story", None)] == [
        "static-3",
        "static-3",
        "tested",
        "off",
    ]


def test_a_route_goes_by_api_key() -> None:
    keys = router("[{api-key: [batch, night], use: off}, {api-key: gold, use: static-3}]")
    assert [keys.policy_of(asked(key=key)) for key in ("night", "gold", "silver", None)] == [
        "off",
        "static-3",
        "tested",
        "tested",
    ]


def test_all_conditions_of_a_route_must_hold_and_the_first_route_wins() -> None:
    both = router("[{task: code, prompt-tokens: {at-least: 9}, use: off}, {task: code, use: static-3}]")
    assert [both.policy_of(asked(size, task="code")) for size in (9, 8)] == ["off", "static-3"]
    assert both.policy_of(asked(9, task="json")) == "tested"


def test_a_named_policy_comes_first_then_routes_then_canaries_then_the_default() -> None:
    routes = routes_of(parse_policy_spec(f"{STATIC}  when: [{{task: code, use: off}}]\n"))
    every = Router("tested", {"canary": CanarySpec(mode="canary", percent=100.0)}, routes)
    assert every.policy_of(asked(task="code", policy="static-3")) == "static-3"
    assert every.policy_of(asked(task="code")) == "off"
    assert every.policy_of(asked(task="json")) == "canary"


@pytest.mark.parametrize(
    ("when", "problem"),
    [
        ("[{use: off}]", "give a condition: task, prompt-tokens or api-key"),
        ("[{task: cod, use: off}]", "did you mean 'code'"),
        ("[{task: [], use: off}]", "at least 1 item"),
        ("[{prompt-tokens: {at-least: 9, at-most: 1}, use: off}]", "swap the two"),
        ("[{api-key: '', use: off}]", "needs the name of a key"),
    ],
)
def test_conditions_that_cannot_be_meant_are_refused(when: str, problem: str) -> None:
    with pytest.raises(PolicyError, match=problem):
        router(when)


def controller(text: str) -> Controller:
    task_names = TaskNames()
    spec = parse_policy_spec(text, "p", task_names, DRAFTERS)
    policies = {one.name: build_policy(one, table(), 4, task_names) for one in with_used([spec])}
    return Controller(policies, spec.name, DRAFTERS, 4, task_names=task_names, routes=routes_of(spec))


def test_used_policies_are_policies_of_the_controller() -> None:
    """With drafters of their own, by the engine's numbers; each decides for its requests alone."""
    one = controller(f"{STATIC}  when: [{{api-key: gold, use: goodput-ngram}}]\n")
    assert list(one.policies) == ["tested", "goodput-ngram"]
    one.start(0, asked(key="gold"))
    one.start(1, asked())
    decision = one.decide(signals([7, 7], found=[4, 4]))
    assert decision.drafter.tolist() == [1, 0]
    assert decision.policies.tolist() == [1, 0]


def test_a_new_default_brings_its_routes() -> None:
    one = controller(f"{STATIC}  when: [{{api-key: gold, use: off}}]\n")
    assert one.assigned(asked(key="gold")) == "off"
    with pytest.raises(ConfigError, match="tested uses off"):
        one.drop("off")
    plain = parse_policy_spec(STATIC, "p", one.task_names, DRAFTERS)
    one.adopt("tested", build_policy(plain, table(), 4, one.task_names))
    assert one.assigned(asked(key="gold")) == "tested"
    one.drop("off")


def test_a_route_to_no_policy_is_refused_and_changes_nothing() -> None:
    one = controller(f"{STATIC}  when: [{{api-key: gold, use: off}}]\n")
    spec = parse_policy_spec(f"{STATIC}  when: [{{api-key: gold, use: static-3}}]\n", "p", one.task_names, DRAFTERS)
    with pytest.raises(ConfigError, match="uses the policy 'static-3'; served are: tested, off"):
        one.adopt("tested", build_policy(spec, table(), 4, one.task_names), routes=routes_of(spec))
    assert one.assigned(asked(key="gold")) == "off"

"""The policy language: what ships loads and runs, what is wrong is said where it is."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import numpy as np
import pytest
import yaml

from adaptspec.control.controller import Controller
from adaptspec.control.language.loader import build_policy, load_policy_spec, parse_policy_spec
from adaptspec.control.language.spec import schema
from adaptspec.control.tasks import TaskNames
from adaptspec.errors import PolicyError
from adaptspec.request import Request, SpeculationParams
from tests.control.helpers import record, signals, table

POLICIES = Path(__file__).parents[3] / "policies"
SHIPPED = sorted(POLICIES.glob("*.yaml"))
HEAD = "apiVersion: adaptspec.dev/v1\nkind: SpeculationPolicy\nmetadata: {name: mine}\n"

TASK_NAMES = TaskNames()


def test_the_committed_schema_is_the_code() -> None:
    committed = json.loads((POLICIES / "policy.schema.json").read_text())
    assert committed == schema(), "run: adaptspec policy schema > policies/policy.schema.json"


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_policies_run(path: Path) -> None:
    """Load, build, and live through a few rounds with requests that come and go."""
    text = path.read_text()
    assert text.startswith("# yaml-language-server: $schema=./policy.schema.json\n# ")
    header = " ".join(line.removeprefix("# ") for line in text.splitlines() if line.startswith("#"))
    assert "Use it" in header, "the header says when to use it"
    spec = load_policy_spec(path)
    assert spec.name == path.stem
    policy = build_policy(spec, table(), 4, TASK_NAMES)
    here = tuple(dict.fromkeys([*spec.drafters, "draft-model", "ngram"]))[:2]
    controller = Controller({spec.name: policy}, spec.name, here, 4, cost=table(), task_names=TASK_NAMES)
    rng = np.random.default_rng(0)
    for number in range(60):
        if number % 20 == 0:
            for row in range(4):
                controller.start(row, Request(f"{number}-{row}", (1,)))
        limits = rng.integers(0, 8, 4)
        decision = controller.decide(signals(limits.tolist()))
        assert (decision.depths >= 0).all()
        assert (decision.depths <= limits).all()
        controller.learn(record(decision.depths.tolist(), [int(rng.integers(0, d + 1)) for d in decision.depths]))


SHORT_FORMS = [
    ("choose: goodput", "choose: {algorithm: goodput}"),
    ("choose: ucb", "choose: {algorithm: ucb}"),
    ("choose: goodput, stop: none", "choose: {algorithm: goodput}, stop: {rule: none}"),
    ("choose: goodput, stop: marginal-goodput", "choose: {algorithm: goodput}, stop: {rule: marginal-goodput}"),
    ("choose: goodput, verification: block", "choose: {algorithm: goodput}, verification: {method: block}"),
    ("choose: goodput, rollout: live", "choose: {algorithm: goodput}, rollout: {mode: live}"),
    ("choose: goodput, guard: {never-slower: true}", "choose: {algorithm: goodput}, guard: {never-slower: {}}"),
    ("choose: goodput, guard: {never-slower: on}", "choose: {algorithm: goodput}"),
    ("choose: goodput, guard: {never-slower: false}", "choose: {algorithm: goodput}, guard: {never-slower: off}"),
    ("choose: goodput, guard: {max-batch-size: 4}", "choose: goodput, guard: {never-slower: {}, max-batch-size: 4}"),
    ("choose: goodput", "choose: goodput, stop: marginal-goodput, guard: {never-slower: on}"),
    ("choose: ucb", "choose: ucb, stop: none, guard: {never-slower: {margin: 0.03}}"),
    ("choose: {algorithm: static, depth: 3}", "choose: {algorithm: static, depth: 3}, guard: {never-slower: off}"),
    (
        "choose: {algorithm: slo, time-per-output-token-ms: 40}",
        "choose: {algorithm: slo, time-per-output-token-ms: 40}, stop: marginal-goodput, guard: {never-slower: off}",
    ),
    (
        "choose: goodput, guard: {never-slower: true, probe: true}",
        "choose: {algorithm: goodput}, guard: {never-slower: {}, probe: {}}",
    ),
    (
        "choose: goodput, tasks: {code: {stop: svip}}, verification: rejection",
        "choose: {algorithm: goodput}, tasks: {code: {stop: {rule: svip}}}, verification: {method: rejection}",
    ),
    (
        "choose: {algorithm: ucb, arms: [{depth: 1}, {depth: 2, stop: svip}]}",
        "choose: {algorithm: ucb, arms: [{depth: 1}, {depth: 2, stop: {rule: svip}}]}",
    ),
]


@pytest.mark.parametrize(("short", "whole"), SHORT_FORMS)
def test_one_word_stands_for_the_mapping_that_it_names(short: str, whole: str) -> None:
    """And editors, which check files by the schema, accept it."""
    text = f"{HEAD}spec: {{{short}}}\n"
    assert parse_policy_spec(text).spec == parse_policy_spec(f"{HEAD}spec: {{{whole}}}\n").spec
    jsonschema.validate(yaml.safe_load(text), schema())


def test_what_a_spec_carries() -> None:
    spec = parse_policy_spec(
        HEAD
        + "spec:\n  tiers: [0, 1, 3]\n  drafters: [ngram]\n"
        + "  choose: {algorithm: goodput}\n  verification: {method: rejection}\n"
    )
    assert (spec.verification.method, spec.drafters, spec.tiers) == ("rejection", ("ngram",), (1, 3))
    assert build_policy(spec, table(), 1).max_depth == 3
    assert parse_policy_spec(HEAD + "spec: {max-depth: 0, choose: {algorithm: goodput}}").tiers == ()


def test_tasks_of_ones_own_are_told_apart() -> None:
    """A name that nobody knew is a task like any other; `other` is whatever has no number."""
    text = HEAD + "spec: {choose: {algorithm: static, depth: 3}, tasks: {creative: {max-depth: 1}, other: {off: true}}}"
    task_names = TaskNames(("code",))
    spec = parse_policy_spec(text, "p", task_names)
    policy = build_policy(spec, table(), 3, task_names)
    controller = Controller({"p": policy}, "p", ("draft-model",), 3, task_names=task_names)
    for row, task in enumerate(("code", "creative", None)):
        controller.start(row, Request(str(row), (1,), speculation=SpeculationParams(task=task)))
    assert controller.decide(signals([7, 7, 7])).depths.tolist() == [3, 1, 0]


def test_more_tasks_than_there_is_room_for_are_refused_where_they_stand() -> None:
    """At the first line too many, also where others took the room; without task names when it is built."""
    task_names = TaskNames(("code",), max_added=2)
    task_names.add("acme")
    text = (
        HEAD + "spec:\n  choose: {algorithm: static, depth: 3}\n  tasks:\n    one: {off: true}\n    two: {off: true}\n"
    )
    with pytest.raises(PolicyError, match=r"^p:8:5: spec.tasks.two: there is no room for one more .*\(acme\).*'other'"):
        parse_policy_spec(text, "p", task_names)
    with pytest.raises(PolicyError, match=r"spec.tasks.two: there is no room"):
        build_policy(parse_policy_spec(text), table(), 1, task_names.copy())
    assert task_names.added == ("acme",)

"""The policy language: what ships loads and runs, what is wrong is said where it is."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from adaptspec.control.controller import Controller
from adaptspec.control.spec import build_policy, load_policy_spec, parse_policy_spec, schema
from adaptspec.errors import PolicyError
from adaptspec.types import Request
from tests.control.helpers import record, signals, table

POLICIES = Path(__file__).parents[2] / "policies"
SHIPPED = sorted(POLICIES.glob("*.yaml"))
HEAD = "apiVersion: adaptspec.dev/v1\nkind: SpeculationPolicy\nmetadata: {name: mine}\n"


def test_the_committed_schema_is_the_code() -> None:
    committed = json.loads((POLICIES / "policy.schema.json").read_text())
    assert committed == schema(), "run: python -m adaptspec.control.spec > policies/policy.schema.json"


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_policies_run(path: Path) -> None:
    """Load, build, and live through a few rounds with requests that come and go."""
    text = path.read_text()
    assert text.startswith("# yaml-language-server: $schema=./policy.schema.json\n# ")
    spec = load_policy_spec(path)
    assert spec.name == path.stem
    policy = build_policy(spec, table(), 4, ("code",))
    controller = Controller(
        {spec.name: policy}, spec.name, ("draft-model", "ngram"), 4, cost=table(), task_names=("code",)
    )
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


def test_all_first_version_policies_ship() -> None:
    names = {path.stem for path in SHIPPED}
    assert {"off", "static-3", "vllm-batch-table", "sglang-ema", "goodput", "goodput-ngram"} <= names


def test_what_a_spec_carries() -> None:
    spec = parse_policy_spec(
        HEAD
        + "spec:\n  tiers: [0, 1, 3]\n  drafters: [ngram]\n"
        + "  choose: {algorithm: goodput}\n  verification: {method: rejection}\n"
    )
    assert (spec.verification, spec.drafters, spec.tiers) == ("rejection", ("ngram",), (1, 3))
    assert build_policy(spec, table(), 1).max_depth == 3
    assert parse_policy_spec(HEAD + "spec: {max-depth: 0, choose: {algorithm: goodput}}").tiers == ()


def test_task_stops_are_built_and_checked() -> None:
    text = (
        HEAD
        + "spec:\n  choose: {algorithm: static, depth: 3}\n"
        + "  tasks: {code: {stop: {rule: confidence, threshold: 0.75}}}\n"
    )
    policy = build_policy(parse_policy_spec(text), table(), 1, ("code",))
    policy.start(0, 1)
    assert policy.decide(signals([7])).stop is not None
    with pytest.raises(PolicyError, match=r"no such task \(did you mean 'codes'\?\)"):
        build_policy(parse_policy_spec(text), table(), 1, ("codes",))


BROKEN = [
    (
        "spec: {choose: {algorithm: godput}}",
        "p:4:28: spec.choose.algorithm: there is no algorithm 'godput' (did you mean 'goodput'?)",
    ),
    ("spec: {choose: {algorithm: ucb}}", "there are: static, batch-table, ema-tiers, goodput"),
    ("spec: {choose: {depth: 3}}", "spec.choose: 'algorithm' is missing"),
    ("spec: {}", "p:4:7: spec: 'choose' is missing"),
    ("spec: {choose: {algorithm: static}}", "spec.choose: 'depth' is missing"),
    (
        "spec: {choose: {algorithm: static, deptth: 3}}",
        "p:4:36: spec.choose.deptth: unknown key (did you mean 'depth'?)",
    ),
    (
        "spec: {choose: {algorithm: static, depth: three}}",
        "spec.choose.depth: input should be a valid integer, not 'three'",
    ),
    ("spec: {choose: {algorithm: static, depth: -1}}", "spec.choose.depth: input should be greater than or equal to 0"),
    ("spec: {choose: {algorithm: static, depth: true}}", "spec.choose.depth"),
    (
        "spec: {choose: {algorithm: static, depth: 3}, stp: {rule: none}}",
        "p:4:47: spec.stp: unknown key (did you mean 'stop'?)",
    ),
    ("spec: {choose: {algorithm: static, depth: 3}, stop: {rule: confidence}}", "spec.stop: 'threshold' is missing"),
    (
        "spec: {choose: {algorithm: static, depth: 3}, stop: {rule: confidence, threshold: 2}}",
        "less than or equal to 1",
    ),
    ("spec: {choose: {algorithm: static, depth: 3}, stop: {rule: adaedl}}", "there is no rule 'adaedl'"),
    ("spec: {choose: {algorithm: static, depth: 3}, stop: {rule: marginal-goodput}}", "needs the costs"),
    ("spec: {choose: {algorithm: static, depth: 3}, tiers: [0, 1]}", "has depths of its own"),
    ("spec: {choose: {algorithm: goodput}, tiers: [3, 1]}", "spec.tiers: tiers must ascend"),
    ("spec: {choose: {algorithm: goodput}, tiers: [0, 1], max-depth: 3}", "either tiers or max-depth"),
    ("spec: {choose: {algorithm: goodput, prior: {acceptance: 1.5}}}", "spec.choose.prior.acceptance"),
    (
        "spec: {choose: {algorithm: goodput}, drafters: [eagle]}",
        "spec.drafters.0: 'eagle' is not supported; there are: draft-model, ngram",
    ),
    (
        "spec: {choose: {algorithm: goodput}, drafters: [ngram, draft-model]}",
        "choosing among drafters is not supported yet",
    ),
    ("spec: {choose: {algorithm: goodput}, drafters: []}", "spec.drafters"),
    ("spec: {choose: {algorithm: goodput}, verification: {method: typical}}", "'typical' is not supported"),
    ("spec: {choose: {algorithm: goodput}, verification: {method: couple}}", "(did you mean 'coupled'?)"),
    ("spec: {choose: {algorithm: goodput}, guard: {never-slower: {margin: 1.5}}}", "spec.guard.never-slower.margin"),
    ("spec: {choose: {algorithm: goodput}, guard: {dwell_rounds: 8}}", "(did you mean 'dwell-rounds'?)"),
    ("spec: {choose: {algorithm: goodput}, rollout: {mode: shadow}}", "spec.rollout: unknown key"),
    ("spec: {choose: {algorithm: batch-table, schedule: [[2, 4, 1]]}}", "must start at batch size 1"),
    ("spec: {choose: {algorithm: batch-table, schedule: [[1, 4, 1], [3, 8, 0]]}}", "overlaps"),
    ("spec: {choose: {algorithm: ema-tiers, ladders: {8: {tiers: [1]}}}}", "must be for batch size 1"),
    ("spec: {choose: {algorithm: ema-tiers, ladders: {one: {tiers: [1]}}}}", "spec.choose.ladders"),
    ("spec: [1]", "p:4:7: spec: "),
    ("spec: null", "p:4:7: spec: "),
]


@pytest.mark.parametrize(("body", "message"), BROKEN, ids=[str(i) for i in range(len(BROKEN))])
def test_broken_policies_are_located(body: str, message: str) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_policy_spec(HEAD + body, "p")
    assert message in str(caught.value)
    assert str(caught.value).startswith("p:4:")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("just text", "p:1:1: a policy is a mapping"),
        ("kind: SpeculationPolicy", "'apiVersion' is missing"),
        (
            HEAD.replace("v1", "v9") + "spec: {choose: {algorithm: goodput}}",
            "p:1:13: apiVersion: 'adaptspec.dev/v9' is not supported",
        ),
        (HEAD.replace("mine", "My Policy") + "spec: {choose: {algorithm: goodput}}", "metadata.name"),
        (
            HEAD.replace("mine", "off") + "spec: {choose: {algorithm: goodput}}",
            "metadata.name: input should be a valid string, not False",
        ),
    ],
)
def test_broken_headers_are_located(text: str, message: str) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_policy_spec(text, "p")
    assert message in str(caught.value)

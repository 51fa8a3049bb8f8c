"""The policy language: what ships loads and runs, what is wrong is said where it is."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from adaptspec.control.controller import Controller
from adaptspec.control.spec import build_policy, load_policy_spec, parse_policy_spec, schema
from adaptspec.control.tasks import TASKS
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
    header = " ".join(line.removeprefix("# ") for line in text.splitlines() if line.startswith("#"))
    assert "Use it" in header, "the header says when to use it"
    spec = load_policy_spec(path)
    assert spec.name == path.stem
    policy = build_policy(spec, table(), 4, TASKS)
    controller = Controller({spec.name: policy}, spec.name, ("draft-model", "ngram"), 4, cost=table(), task_names=TASKS)
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
    assert (spec.verification.method, spec.drafters, spec.tiers) == ("rejection", ("ngram",), (1, 3))
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


def test_names_of_tasks_are_located_where_they_are_known() -> None:
    """A server knows them while it reads; without them they are checked when the policy is built."""
    text = HEAD + "spec:\n  choose: {algorithm: static, depth: 3}\n  tasks: {cod: {off: true}}\n"
    parse_policy_spec(text)
    with pytest.raises(PolicyError, match=r"^p:6:11: spec.tasks.cod: there is no such task \(did you mean 'code'\?\)"):
        parse_policy_spec(text, "p", ("code", "json"))


def test_words_are_words_as_editors_read_them() -> None:
    """YAML 1.2: only true and false are not."""
    spec = parse_policy_spec(HEAD.replace("mine", "off") + "spec: {choose: {algorithm: static, depth: 3}}")
    assert spec.name == "off"

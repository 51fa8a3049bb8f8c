"""A policy as SGLang asks for it: depths that it prepares, batches without names, outcomes that come late or never."""

from __future__ import annotations

import atexit
import json
from collections import deque
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adaptspec.control.language.library import shipped_policies
from adaptspec.errors import ConfigError, PolicyError
from adaptspec.hosts.sglang.policy_steps import PolicySteps, candidate_steps, is_policy
from tests.records import read_journal

MODELS = {"target": "t", "draft": "d"}


class Clock:
    """Seconds, of which 1 ms passes with each look."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


def _policy(folder: Path, body: str) -> str:
    path = folder / "own.yaml"
    path.write_text(
        "apiVersion: adaptspec.dev/v1\nkind: SpeculationPolicy\nmetadata: {name: own}\nspec: " + body + "\n"
    )
    return str(path)


@pytest.mark.parametrize(
    ("body", "steps"),
    [
        ("{choose: {algorithm: static, depth: 4}}", [0, 4]),
        ("{choose: {algorithm: static, depth: 0}}", [0]),
        ("{tiers: [off, 2, 9], choose: {algorithm: goodput}}", [0, 2, 9]),
        ("{max-depth: 2, choose: {algorithm: goodput}}", [0, 1, 2]),
        ("{max-depth: 12, choose: {algorithm: goodput}}", [0, 1, 3, 5, 7]),
        ("{choose: {algorithm: batch-table, schedule: [[1, 4, 6], [5, 64, 2]]}}", [0, 2, 6]),
        ("{choose: {algorithm: ema-tiers, ladders: {1: {tiers: [1, 8]}}}}", [0, 1, 8]),
        (
            "{max-depth: 2, choose: {algorithm: goodput}, when: [{use: static-3, prompt-tokens: {at-least: 4}}]}",
            [0, 1, 2],
        ),
    ],
)
def test_sglang_prepares_what_a_policy_may_choose(tmp_path: Path, body: str, steps: list[int]) -> None:
    assert candidate_steps(_policy(tmp_path, body)) == steps


REFUSED = [path for path in shipped_policies() if path.stem in ("lookahead", "goodput-counts", "goodput-ngram")]


@pytest.mark.parametrize("path", REFUSED, ids=lambda path: path.stem)
def test_a_policy_that_drafts_without_a_model_is_refused(path: Path) -> None:
    with pytest.raises(PolicyError, match="which SGLang does not have here"):
        PolicySteps(0, str(path), MODELS)


@pytest.mark.parametrize(
    "path", [path for path in shipped_policies() if path not in REFUSED], ids=lambda path: path.stem
)
def test_shipped_policies_choose_among_what_is_prepared(path: Path) -> None:
    steps = PolicySteps(0, str(path), MODELS, Clock())
    assert steps.candidate_steps[0] == 0
    for round_ in range(120):
        size = 1 + round_ // 40
        taken = steps.get_steps_for_batch(size)
        assert taken in steps.candidate_steps
        steps.on_verify_complete([taken // 2] * size, size)
    assert steps.pilot.errors == 0


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 6), st.booleans(), st.booleans()), max_size=80))
def test_whatever_is_told_when_nothing_fails_and_nobody_stays(events: list[tuple[int, bool, bool]]) -> None:
    """Batches of any size, outcomes that are lost, or come when the next decision was made, or the one after."""
    steps = PolicySteps(1, "policies/ucb.yaml", MODELS, Clock())
    waiting: deque[tuple[int, int]] = deque()
    for size, told, lost in events:
        waiting.append((size, steps.get_steps_for_batch(size)))
        while waiting and (told or len(waiting) > 1):
            one, taken = waiting.popleft()
            if not lost:
                steps.on_verify_complete([taken] * one, one)
    assert steps.pilot.errors == 0


def test_time_in_which_nothing_ran_is_no_steps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither pauses between requests count nor prompts that are read, which SGLang does not report.

    After a pause longer than a step the rows may be other requests, so they have other names.
    """
    clock, journal, rounds = Clock(), tmp_path / "rounds.jsonl", 60
    monkeypatch.setenv("ADAPTSPEC_HOST", json.dumps({"journal": str(journal)}))
    steps = PolicySteps(1, "policies/goodput.yaml", MODELS, clock)
    for pause in [100.0] * rounds + [0.2] * rounds:
        clock.now += pause
        steps.get_steps_for_batch(2)
        clock.now += 0.25
        steps.on_verify_complete([0, 0], 2)
    atexit.unregister(steps.pilot.close)
    steps.pilot.close()
    records = list(read_journal(journal))
    assert [record.timing.total for record in records] == [pytest.approx(0.25, abs=0.02)] * len(records)
    names = [record.request_ids[0] for record in records]
    assert len(set(names)) == len(names) - rounds > 10
    assert len(set(names[-rounds:])) == 1


def test_the_environment_says_what_sglang_has_no_option_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    journal, state = tmp_path / "rounds.jsonl", tmp_path / "state"
    monkeypatch.setenv("ADAPTSPEC_HOST", json.dumps({"journal": str(journal), "state-dir": str(state)}))
    steps = PolicySteps(1, "policies/goodput.yaml", MODELS, Clock())
    for _ in range(60):
        taken = steps.get_steps_for_batch(2)
        steps.on_verify_complete([taken, 0], 2)
    atexit.unregister(steps.pilot.close)
    steps.pilot.close()
    assert len(journal.read_text().splitlines()) > 20
    assert any(state.rglob("*.json"))


@pytest.mark.parametrize("told", ["{", "[]", "3", '{"jornal": "a"}', '{"state-seconds": 0}'])
def test_what_the_environment_says_wrongly_is_refused(monkeypatch: pytest.MonkeyPatch, told: str) -> None:
    monkeypatch.setenv("ADAPTSPEC_HOST", told)
    with pytest.raises(ConfigError):
        PolicySteps(1, "policies/goodput.yaml", MODELS)


@pytest.mark.parametrize(
    ("path", "ours"), [("a.yaml", True), ("/b/c.yml", True), ("a.json", False), (None, False), ("yaml", False)]
)
def test_json_is_sglangs_own(path: Any, ours: bool) -> None:
    assert is_policy(path) is ours

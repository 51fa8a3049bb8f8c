"""A policy is fitted to a host: each thing that is left out is said with its place, what changes text is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from adaptspec.control.cost_model import CostModel
from adaptspec.control.cost_profile import CostProfile
from adaptspec.control.host import DRAFTER, SGLANG, VLLM, Host, narrow
from adaptspec.control.language.library import shipped_policies
from adaptspec.control.language.loader import build_policy, load_policy_spec, parse_policy_spec
from adaptspec.control.language.spec import PolicySpec
from adaptspec.errors import PolicyError

HEADER = "apiVersion: adaptspec.dev/v1\nkind: SpeculationPolicy\nmetadata: {name: tested}\nspec:\n"
HOSTS = (
    replace(VLLM, deepest=5),
    replace(VLLM, deepest=7, tiers=(1, 3, 7)),
    replace(SGLANG, deepest=7, tiers=(1, 3, 5, 7)),
)
NOT_THERE = {"goodput-ngram": "ngram", "goodput-counts": "counts", "lookahead": "lookahead"}


def parsed(body: str) -> PolicySpec:
    return parse_policy_spec(HEADER + body, "mine.yaml")


def told(body: str, host: Host = VLLM) -> list[str]:
    return [str(note) for note in narrow(parsed(body), host)[1]]


@pytest.mark.parametrize("host", HOSTS, ids=["vllm", "vllm-tiers", "sglang"])
@pytest.mark.parametrize("path", shipped_policies(), ids=lambda path: path.stem)
def test_every_shipped_policy_fits_or_says_why_not(path: Path, host: Host) -> None:
    """What comes out can be built, drafts no deeper than the host, and asks for nothing that it does not have."""
    spec = load_policy_spec(path)
    if path.stem in NOT_THERE:
        with pytest.raises(PolicyError, match=rf"{path.name}:\d+:\d+: spec.drafters.*{NOT_THERE[path.stem]}"):
            narrow(spec, host)
        return
    own, notes = narrow(spec, host)
    policy = build_policy(own, CostModel(CostProfile.typical(DRAFTER)), 8)
    assert policy.max_depth <= host.deepest
    assert set(policy.wanted) <= {DRAFTER}
    assert own.spec.stop.rule == "none"
    assert own.spec.draft_temperature is None
    assert own.spec.max_width == 1
    assert not any(task.stop for task in own.spec.tasks.values())
    assert all(str(note).startswith(f"{path}:{note.line}:{note.column}: spec") for note in notes)
    assert narrow(own, host)[0] == own, "what was fitted fits"


def test_notes_say_where() -> None:
    """Line, column and path of each value that does not hold."""
    notes = told("  max-depth: 9\n  choose: {algorithm: goodput}\n  stop: {rule: svip}\n", replace(VLLM, deepest=4))
    assert [note.split(": ")[0:2] for note in notes] == [
        ["mine.yaml:5:14", "spec.max-depth"],
        ["mine.yaml:7:9", "spec.stop"],
    ]


@pytest.mark.parametrize(
    "verification", ["{method: threshold, lossy: true}", "{method: typical, lossy: true, epsilon: 0.2}"]
)
def test_lossy_verification_is_refused(verification: str) -> None:
    """Its text would be another one."""
    body = f"  choose: {{algorithm: static, depth: 3}}\n  verification: {verification}\n"
    with pytest.raises(PolicyError, match=r"mine\.yaml:6:\d+: spec\..*lossy"):
        narrow(parsed(body), VLLM)


def test_depths_become_the_next_lower_ones() -> None:
    """Of fixed depths, schedules, ladders, arms and tiers alike."""
    host = replace(VLLM, deepest=4, tiers=(1, 4))
    static = narrow(parsed("  choose: {algorithm: static, depth: 7}\n"), host)[0]
    assert static.spec.choose.depth == 4
    table = narrow(parsed("  choose: {algorithm: batch-table, schedule: [[1, 2, 7], [3, 9, 3]]}\n"), host)[0]
    assert table.spec.choose.schedule == [[1, 2, 4], [3, 9, 1]]
    ladder = narrow(parsed("  choose: {algorithm: ema-tiers}\n"), host)[0]
    assert {tier for one in ladder.spec.choose.ladders.values() for tier in one.tiers} <= {0, 1, 4}
    arms = "  choose: {algorithm: ucb, arms: [{depth: 0}, {depth: 3}, {depth: 2}, {depth: 9}]}\n"
    assert [arm.depth for arm in narrow(parsed(arms), host)[0].spec.choose.arms] == [0, 1, 4]
    tiers = narrow(
        parsed("  tiers: [off, 1, 3, 7]\n  choose: {algorithm: goodput}\n  tasks: {code: {tiers: [3, 7]}}\n"), host
    )
    assert tiers[0].tiers == (1, 4)
    assert tiers[0].spec.tasks["code"].tiers == [1, 4]


def test_policies_that_it_uses_are_fitted_too(tmp_path: Path) -> None:
    """Their notes name their own files."""
    other = tmp_path / "deep.yaml"
    other.write_text(HEADER + "  choose: {algorithm: static, depth: 9}\n")
    body = f"  choose: {{algorithm: goodput}}\n  max-depth: 4\n  when: [{{task: code, use: {other}}}]\n"
    own, notes = narrow(parsed(body), replace(VLLM, deepest=4))
    assert next(iter(own.used.values())).spec.choose.depth == 4
    assert [note.file for note in notes] == [str(other)]
    build_policy(own, CostModel(CostProfile.typical(DRAFTER)), 8)


def test_what_a_host_does_not_tell_of_requests() -> None:
    """Keys, prompts and tasks: cases that never hold are left out, and said."""
    body = (
        "  choose: {algorithm: goodput}\n  tasks: {code: {max-depth: 2}}\n"
        "  when:\n    - {api-key: a, use: off}\n    - {prompt-tokens: {at-least: 9}, use: off}\n"
    )
    assert [note.where for note in narrow(parsed(body), VLLM)[1]] == ["spec.when.0"]
    own, notes = narrow(parsed(body), SGLANG)
    assert not own.spec.when
    assert not own.spec.tasks
    assert {"spec.tasks", "spec.when.0", "spec.when.1"} <= {note.where for note in notes}

"""Differences of meaning, not of layout."""

from __future__ import annotations

from adaptspec.commands.run_policy import differences
from adaptspec.control.language.build import parse_policy_spec

HEAD = "apiVersion: adaptspec.dev/v1\nkind: SpeculationPolicy\nmetadata: {name: mine}\n"


def told(left: str, right: str) -> list[str]:
    return differences(parse_policy_spec(HEAD + left), parse_policy_spec(HEAD + right))


def test_defaults_that_are_written_out_differ_from_nothing() -> None:
    """Nor do order and style."""
    right = "spec:\n  stop: {rule: none}\n  guard: {dwell-rounds: 0}\n  choose: {optimism: 0.1, algorithm: goodput}\n"
    assert told("spec: {choose: {algorithm: goodput}}", right) == []


def test_changes_additions_and_removals_are_told_by_path() -> None:
    """With the value a default stands for."""
    left = "spec: {choose: {algorithm: goodput}, max-depth: 3, guard: {never-slower: {}}}"
    right = "spec: {choose: {algorithm: goodput, discount: 0.9}, tiers: [0, 2], guard: {never-slower: {margin: 0.1}}}"
    assert told(left, right) == [
        "spec.choose.discount: 0.99 -> 0.9",
        "spec.tiers: + [0, 2]",
        "spec.max-depth: - 3",
        "spec.guard.never-slower.margin: 0.03 -> 0.1",
    ]

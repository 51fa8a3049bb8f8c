"""The policies of a start: which files are read, which one is the default, and how deep they draft."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from adaptspec.control.language.library import find_policy
from adaptspec.control.language.start_policies import StartPolicies, read_start_policies
from adaptspec.control.tasks import TaskNames
from adaptspec.errors import ConfigError, PolicyError

CANARY = ", rollout: {mode: canary, percent: 9}"


def policy_file(folder: Path, name: str, depth: int = 2, more: str = "") -> str:
    path = folder / f"{name}.yaml"
    path.write_text(
        f"apiVersion: adaptspec.dev/v1\nkind: SpeculationPolicy\nmetadata: {{name: {name}}}\n"
        f"spec: {{choose: {{algorithm: static, depth: {depth}}}, drafters: [ngram]{more}}}\n"
    )
    return str(path)


def read(
    *names: str, available: Sequence[str] = ("ngram", "counts"), task_names: TaskNames | None = None
) -> StartPolicies:
    return read_start_policies(names, "goodput-ngram", available, 4, task_names or TaskNames())


def test_named_policies_come_first_then_those_they_use_then_shipped_ones(tmp_path: Path) -> None:
    policy_file(tmp_path, "used")
    first = policy_file(tmp_path, "first", more=", when: [{task: code, use: ./used.yaml}]")
    policies = read(first, "off")
    names = [spec.name for spec in policies.specs]
    assert names[:3] == ["first", "off", "used"]
    assert "goodput-ngram" in names
    assert "goodput" not in names, "it needs a draft model"
    assert policies.files.keys() == set(names)
    assert policies.files["used"] == tmp_path / "used.yaml"
    assert policies.files["goodput-ngram"] == find_policy("goodput-ngram")


def test_the_depth_is_that_of_the_deepest_policy(tmp_path: Path) -> None:
    shipped = read("off").max_depth
    assert shipped > 2
    assert read(policy_file(tmp_path, "shallow")).max_depth == shipped
    deep = policy_file(tmp_path, "deep", 40)
    assert read(deep).max_depth == 40
    user = policy_file(tmp_path, "user", more=", when: [{task: code, use: ./deep.yaml}]")
    assert read(user).max_depth == 40, "requests may be routed to a policy that another one uses"


def test_the_default_is_added_to_canaries_alone(tmp_path: Path) -> None:
    canary = policy_file(tmp_path, "new", more=CANARY)
    assert [spec.name for spec in read(canary).specs[:2]] == ["goodput-ngram", "new"]
    assert [spec.name for spec in read(canary, "off").specs[:2]] == ["new", "off"]


def test_a_file_that_is_named_twice_is_one_policy(tmp_path: Path) -> None:
    (tmp_path / "link.yaml").symlink_to(policy_file(tmp_path, "mine"))
    policies = read(str(tmp_path / "mine.yaml"), str(tmp_path / "link.yaml"))
    assert [spec.name for spec in policies.specs].count("mine") == 1


def test_a_used_policy_cannot_have_the_name_of_another_file(tmp_path: Path) -> None:
    """A request that names `off` would get one or the other."""
    policy_file(tmp_path, "off")
    user = policy_file(tmp_path, "user", more=", when: [{task: code, use: ./off.yaml}]")
    with pytest.raises(ConfigError, match="both hold a policy called off"):
        read(user, "off")
    assert read(user).files["off"] == tmp_path / "off.yaml", "it replaces the shipped policy"


def test_tasks_are_counted_over_all_policies_but_not_added(tmp_path: Path) -> None:
    """The engine numbers them when it builds the policies."""
    task_names = TaskNames()
    tasks = [f"t{i}" for i in range(task_names.room)]
    some, others = (
        policy_file(tmp_path, name, more=f", tasks: {{{', '.join(f'{task}: {{off: true}}' for task in part)}}}")
        for name, part in (("some", tasks), ("others", ["one-more"]))
    )
    assert read(some, task_names=task_names).specs[0].name == "some"
    assert task_names.added == ()
    with pytest.raises(PolicyError, match="no room for one more task"):
        read(some, others)


def test_a_shipped_policy_runs_with_those_of_its_drafters_that_are_available(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """`--policy goodput` without a draft model drafts by lookup; drafts then branch only where that can be priced."""
    first, second = read("goodput", "goodput-trees").specs[:2]
    assert (first.name, first.drafters, second.spec.max_width) == ("goodput", ("ngram",), 1)
    assert caplog.messages[0] == (
        "goodput drafts with ngram alone: there is no draft-model here (--draft DIR gives one)"
    )
    assert read("goodput", available=("draft-model", "ngram")).specs[0].drafters == ("draft-model", "ngram")


def test_a_shipped_policy_without_any_of_its_drafters_says_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r"--policy slo drafts with draft-model, .* give one \(--draft DIR"):
        read("slo")


def test_a_file_that_names_a_drafter_that_is_not_available_is_refused(tmp_path: Path) -> None:
    """It is its owner's, who can change it."""
    file = tmp_path / "mine.yaml"
    file.write_text(find_policy("goodput").read_text(encoding="utf-8"))
    with pytest.raises(PolicyError, match=r"mine.yaml:\d+:\d+: spec.drafters.0: drafts with draft-model"):
        read(str(file))

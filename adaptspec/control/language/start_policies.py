"""The policies that an engine starts with: files are read, and each policy is built once to check it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from adaptspec.control.language.library import find_policy, is_file_name, shipped_policies
from adaptspec.control.language.loader import build_for_checks, load_policy_spec
from adaptspec.control.language.spec import PolicySpec
from adaptspec.control.rollout import LIVE, Shares
from adaptspec.control.routing import check_file
from adaptspec.control.tasks import TaskNames
from adaptspec.errors import ConfigError

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StartPolicies:
    """The policies that requests can name; the first live one is the default.

    `files` has the file of each policy by its name. `max_depth` is the deepest draft that any of them asks for.
    """

    specs: tuple[PolicySpec, ...]
    files: Mapping[str, Path]
    max_depth: int


def read_start_policies(
    names: Sequence[str], default: str, available: Sequence[str], max_rows: int, task_names: TaskNames
) -> StartPolicies:
    """Read the policies in `names`, those that they use, and every shipped policy that the drafters can run.

    `names` are paths or names of shipped policies. The policy `default` is added if no other one is live. `available`
    are the engine's drafters. `task_names` are not changed. Notes on the policies are logged.

    Raises:
        PolicyError, ConfigError: a policy cannot be used, two files have the same name, or the shares of canaries
            exceed 100 percent.
    """
    task_names = task_names.copy()
    named = _named_specs(names, default, available, task_names)
    by_name: dict[str, PolicySpec] = {}
    for spec in [*named, *(used for user in named for used in user.used.values())]:
        check_file(spec.name, spec.path, by_name.setdefault(spec.name, spec).path)
    default_spec = next(spec for spec in named if spec.rollout == LIVE)
    for spec in by_name.values():
        for note in spec.notes(default=spec is default_spec):
            _log.warning("%s", note)
    Shares({spec.name: spec.rollout for spec in by_name.values()})  # raises ConfigError
    for shipped in map(load_policy_spec, shipped_policies()):
        if set(available).issuperset(shipped.needed):
            by_name.setdefault(shipped.name, shipped.with_drafters(available))
    specs = tuple(by_name.values())
    policies = [build_for_checks(spec, max_rows, task_names) for spec in specs]
    files = {spec.name: spec.path for spec in specs}
    return StartPolicies(specs, files, max(policy.max_depth for policy in policies))


def _named_specs(
    names: Sequence[str], default: str, available: Sequence[str], task_names: TaskNames
) -> list[PolicySpec]:
    """The named policies, each file once. If all of them are canaries, the policy `default` is put first."""
    paths = {find_policy(name).resolve(): name for name in names}
    specs = [
        load_policy_spec(find_policy(name), task_names, available)
        if is_file_name(name)
        else _shipped_spec(name, available, task_names)
        for name in paths.values()
    ]
    if any(spec.rollout == LIVE for spec in specs):
        return specs
    path = find_policy(default)
    others = [spec for spec in specs if spec.path.resolve() != path.resolve()]
    return [load_policy_spec(path, available=available), *others]


def _shipped_spec(name: str, available: Sequence[str], task_names: TaskNames) -> PolicySpec:
    """A shipped policy with those of its drafters that are available. Raises ConfigError if none of them is."""
    spec = load_policy_spec(find_policy(name), task_names)
    missing = [drafter for drafter in spec.needed if drafter not in available]
    left = [drafter for drafter in spec.drafters if drafter in available]
    if missing and not left:
        raise ConfigError(
            f"--policy {name} drafts with {missing[0]}, and there is no draft model: give one (--draft DIR, or --draft "
            "quantized:int8 for the target itself in fewer bits), or choose a policy that needs none (goodput-ngram)"
        )
    if missing:
        _log.warning(
            "%s drafts with %s alone: there is no %s here (--draft DIR gives one)",
            name,
            " and ".join(left),
            " and no ".join(missing),
        )
        spec = spec.with_body(spec.spec.model_copy(update={"drafters": None}), spec.used).with_drafters(left)
    return spec.with_drafters(available)

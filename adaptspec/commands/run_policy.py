"""What `adaptspec policy list|show|validate|schema|diff|import` does."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from adaptspec.commands.policy_import import IMPORTERS
from adaptspec.control.cost import CostProfile, CostTable
from adaptspec.control.language.build import build_policy, load_policy_spec
from adaptspec.control.language.library import find_policy, shipped_policies
from adaptspec.control.language.spec import PolicySpec, schema
from adaptspec.control.language.yaml_source import read_text
from adaptspec.control.tasks import Labels
from adaptspec.errors import ConfigError, PolicyError
from adaptspec.tables import Table, show


def run_list(arguments: argparse.Namespace) -> int:
    """Print the policies that ship."""
    table = Table("policy", "algorithm", "drafters", "description")
    for path in shipped_policies():
        spec = load_policy_spec(path)
        table.add_row(spec.name, spec.spec.choose.algorithm, ", ".join(spec.drafters), spec.metadata.description)
    show([table], arguments.form)
    return 0


def run_show(arguments: argparse.Namespace) -> int:
    """Print a policy file."""
    path = find_policy(arguments.policy)
    load_policy_spec(path)
    print(read_text(path), end="")
    return 0


def run_validate(arguments: argparse.Namespace) -> int:
    """Check policy files; the exit status is 2 if one is not valid."""
    status = 0
    for name in arguments.policies:
        try:
            _check(find_policy(name))
            print(f"{name}: ok")
        except PolicyError as error:
            print(error, file=sys.stderr)
            status = 2
    return status


def _check(path: Path) -> None:
    """Read it and build it once, as a server would."""
    labels = Labels()
    spec = load_policy_spec(path, labels)
    try:
        build_policy(spec, CostTable(CostProfile((1,), (1,), ((1.0,),))), 1, labels)
    except ConfigError as error:
        raise PolicyError(f"{path}:1:1: {error}") from error


def run_schema(_: argparse.Namespace) -> int:
    """Print the JSON Schema."""
    print(json.dumps(schema(), indent=2))
    return 0


def run_diff(arguments: argparse.Namespace) -> int:
    """Print what differs."""
    left, right = (load_policy_spec(find_policy(name)) for name in (arguments.left, arguments.right))
    print("\n".join(differences(left, right)) or "the two mean the same")
    return 0


def differences(left: PolicySpec, right: PolicySpec) -> list[str]:
    """Every difference of meaning once defaults are filled in, by path: names and descriptions too, layout not."""
    one, other = (dict(_leaves(spec.model_dump(by_alias=True), "")) for spec in (left, right))
    found = {path: (one.get(path), other.get(path)) for path in {**one, **other}}
    return [_told(path, *both) for path, both in found.items() if both[0] != both[1]]


def _told(path: str, left: object, right: object) -> str:
    if left is None:
        return f"{path}: + {right}"
    return f"{path}: - {left}" if right is None else f"{path}: {left} -> {right}"


def _leaves(value: Mapping[Any, object], path: str) -> Iterator[tuple[str, object]]:
    for key, below in value.items():
        here = f"{path}.{key}" if path else str(key)
        if isinstance(below, dict):
            yield from _leaves(below, here)
        else:
            yield here, below


def run_import(arguments: argparse.Namespace) -> int:
    """Make a policy of another engine's configuration."""
    text = IMPORTERS[arguments.engine](arguments.file)
    if arguments.output is None:
        print(text, end="")
        return 0
    try:
        with arguments.output.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ConfigError(f"{arguments.output}: cannot be written ({error.strerror}); choose another file") from error
    return 0

"""What `adaptspec policy list|show|validate|schema|diff|import` does."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from adaptspec.commands.policy_differences import differences
from adaptspec.commands.policy_import import IMPORTERS
from adaptspec.control.cost import CostProfile, CostTable
from adaptspec.control.labels import Labels
from adaptspec.control.library import find_policy, shipped_policies
from adaptspec.control.spec import build_policy, load_policy_spec, schema
from adaptspec.control.yaml_source import read_text
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
    found = differences(left, right)
    for difference in found:
        print(difference)
    if not found:
        print("the two mean the same")
    return 0


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

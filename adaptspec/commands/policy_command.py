"""`adaptspec policy ...`: look at policies, check them, compare them, bring them from elsewhere."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptspec.command_line import add_table_forms
from adaptspec.commands.arguments import complete_policies
from adaptspec.commands.policy_analysis import (
    add_estimate_arguments,
    add_explain_arguments,
    add_simulate_arguments,
    add_tune_arguments,
)
from adaptspec.control.language.library import find_policy, shipped_policies
from adaptspec.errors import ConfigError, PolicyError

if TYPE_CHECKING:
    from adaptspec.control.language.spec import PolicySpec


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `adaptspec policy`."""
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    one = actions.add_parser("list", help="the policies that ship, and when to use them")
    add_table_forms(one)
    one.set_defaults(run=_list)
    one = actions.add_parser("show", help="print a policy file")
    complete_policies(one.add_argument("policy", metavar="NAME|FILE", help="a shipped policy or a YAML file"))
    one.set_defaults(run=_show)
    one = actions.add_parser("validate", help="check policy files: says what is wrong, and where")
    complete_policies(
        one.add_argument("policies", metavar="NAME|FILE", nargs="+", help="a shipped policy or a YAML file")
    )
    one.set_defaults(run=_validate)
    one = actions.add_parser("schema", help="print the JSON Schema of policy files, for editors")
    one.set_defaults(run=_schema)
    one = actions.add_parser("diff", help="what differs between two policies, defaults filled in")
    complete_policies(one.add_argument("left", metavar="A", help="a shipped policy or a YAML file"))
    complete_policies(one.add_argument("right", metavar="B", help="a shipped policy or a YAML file"))
    one.set_defaults(run=_diff)
    add_simulate_arguments(actions.add_parser("simulate", help="what policies would have earned on recorded requests"))
    add_explain_arguments(actions.add_parser("explain", help="why a policy chose what it did, from a server's journal"))
    add_estimate_arguments(
        actions.add_parser("estimate", help="what a policy would have earned, from the journal of one that explores")
    )
    add_tune_arguments(
        actions.add_parser("tune", help="search a policy's parameters on tapes; held-out prompts decide")
    )
    one = actions.add_parser("import", help="make a policy of another engine's configuration")
    one.add_argument("engine", choices=["sglang", "vllm"], help="whose configuration it is")
    one.add_argument("file", type=Path, help="its JSON file")
    one.add_argument("-o", "--output", type=Path, help="file to write; an existing one is kept (default: print it)")
    one.set_defaults(run=_import)


def _list(arguments: argparse.Namespace) -> int:
    from adaptspec.control.language.build import load_policy_spec
    from adaptspec.tables import Table, show

    table = Table("policy", "algorithm", "drafters", "description")
    for path in shipped_policies():
        spec = load_policy_spec(path)
        table.add_row(spec.name, spec.spec.choose.algorithm, ", ".join(spec.drafters), spec.metadata.description)
    show([table], arguments.form)
    return 0


def _show(arguments: argparse.Namespace) -> int:
    from adaptspec.control.language.build import load_policy_spec
    from adaptspec.control.language.yaml_source import read_text

    path = find_policy(arguments.policy)
    load_policy_spec(path)
    print(read_text(path), end="")
    return 0


def _validate(arguments: argparse.Namespace) -> int:
    """The exit status is 2 if a file is not valid."""
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
    from adaptspec.control.cost import CostProfile, CostTable
    from adaptspec.control.language.build import build_policy, load_policy_spec
    from adaptspec.control.tasks import Labels

    labels = Labels()
    spec = load_policy_spec(path, labels)
    try:
        build_policy(spec, CostTable(CostProfile((1,), (1,), ((1.0,),))), 1, labels)
    except ConfigError as error:
        raise PolicyError(f"{path}:1:1: {error}") from error


def _schema(_: argparse.Namespace) -> int:
    from adaptspec.control.language.spec import schema

    print(json.dumps(schema(), indent=2))
    return 0


def _diff(arguments: argparse.Namespace) -> int:
    from adaptspec.control.language.build import load_policy_spec

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


def _import(arguments: argparse.Namespace) -> int:
    from adaptspec.commands.policy_import import IMPORTERS

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

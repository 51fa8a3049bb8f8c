"""`adaptspec state ...`: look at learned state, and put the states of several replicas together."""

from __future__ import annotations

import argparse
from pathlib import Path

from adaptspec.command_line import add_table_forms
from adaptspec.control.learned_state import FILE, merged, read_state, to_bytes
from adaptspec.errors import ConfigError
from adaptspec.files import write_file
from adaptspec.tables import Table, show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `adaptspec state`."""
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    one = actions.add_parser("show", help="what is in a state: policies, arrays, how much was counted")
    one.add_argument("state", type=Path, help=f"a state directory, or its {FILE}")
    add_table_forms(one)
    one.set_defaults(run=_show)
    one = actions.add_parser("merge", help="add what several replicas have learned")
    one.add_argument("states", type=Path, nargs="+", metavar="STATE", help=f"state directories, or their {FILE}")
    one.add_argument("-o", "--output", type=Path, required=True, help="file to write; an existing one is replaced")
    one.set_defaults(run=_merge)


def _show(arguments: argparse.Namespace) -> int:
    state = read_state(_file(arguments.state))
    table = Table("policy", "arrays", "shape", "sum", title=f"models {state.pair}", keys=2)
    for name, policy in sorted(state.policies.items()):
        for key, array in sorted(policy.arrays.items()):
            table.add_row(name, key, " x ".join(map(str, array.shape)), f"{array.sum():.1f}")
    show([table], arguments.form)
    return 0


def _merge(arguments: argparse.Namespace) -> int:
    whole = merged([read_state(_file(path)) for path in arguments.states])
    try:
        write_file(arguments.output, to_bytes(whole))
    except OSError as error:
        raise ConfigError(f"{arguments.output}: cannot be written ({error.strerror}); choose another file") from error
    return 0


def _file(path: Path) -> Path:
    return path / FILE if path.is_dir() else path

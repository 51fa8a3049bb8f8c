"""`adaptspec costs ...`: what rounds cost on this machine, which decides whether drafting pays."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from adaptspec.command_line import add_table_forms
from adaptspec.commands.arguments import add_models, engine_config
from adaptspec.errors import ConfigError

if TYPE_CHECKING:
    from adaptspec.control.cost import CostProfile
    from adaptspec.engine.cost_files import CostFile
    from adaptspec.tables import Table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `adaptspec costs`."""
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    one = actions.add_parser("show", help="the tables that were measured here: where they are, how old, of what")
    one.add_argument("file", type=Path, nargs="?", help="only this file (default: all of this user's cache)")
    add_table_forms(one, json=True)
    one.set_defaults(run=_show)
    one = actions.add_parser("measure", help="measure models anew, and keep the table for the next start")
    one.description = (
        "Measure what passes of these models cost on this machine, as a server does at its first start, and put the "
        "table in place of the one in the cache. Takes some seconds; nothing else should run meanwhile."
    )
    add_models(one)
    add_table_forms(one, json=True)
    one.set_defaults(run=_measure)


def _show(arguments: argparse.Namespace) -> int:
    from adaptspec.engine.cost_files import cost_files, read_cost_file

    bad: list[str] = []
    if arguments.file is None:
        files, bad = cost_files()
    else:
        try:
            files = [read_cost_file(arguments.file)]
        except (OSError, ConfigError, ValueError) as error:
            raise ConfigError(f"{arguments.file}: cannot be used ({error}); give a cost table") from error
    for line in bad:
        sys.stderr.write(f"{line}\n")
    _print(files, arguments)
    return 0


def _measure(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from adaptspec.engine.assembly import build
    from adaptspec.engine.cost_files import read_cost_file
    from adaptspec.engine.profiler import cost_path, measured_costs

    config = engine_config(arguments)
    with Console(stderr=True).status(f"measuring {config.model}"):
        built = build(config, costs=measured_costs)
    path = cost_path(built.target, built.drafters, config.limits.max_rows)
    try:
        kept = read_cost_file(path)
    except (OSError, ValueError, ConfigError):
        kept = None
    if kept is None or kept.table.profile != built.costs.profile:
        sys.stderr.write(f"{path}: the table was not kept, see above; measure again when the machine is quiet\n")
        return 1
    _print([kept], arguments)
    return 0


def _print(files: Sequence[CostFile], arguments: argparse.Namespace) -> None:
    from adaptspec.engine.cost_files import costs_folder
    from adaptspec.tables import show

    now = datetime.now(timezone.utc)
    if arguments.json:
        body = {"folder": str(costs_folder()), "tables": [file.to_json(now) for file in files]}
        sys.stdout.write(json.dumps(body, indent=1) + "\n")
        return
    parts: list[Table | str] = [part for file in files for part in _report(file, now)]
    if not parts:
        parts = [
            f"{costs_folder()}: no costs were measured yet. `adaptspec serve` does at its first start with a model, "
            "`adaptspec costs measure` does now."
        ]
    show(parts, arguments.form)


def _report(file: CostFile, now: datetime) -> list[Table | str]:
    profile = file.table.profile
    said: list[Table | str] = [str(file.path), file.origin(now), _passes(profile)]
    drafting = _drafting(profile)
    if drafting.rows:
        said.append(drafting)
    said.append(
        f"Beside its passes a round takes {profile.overhead * 1e3:.3g} ms, and "
        f"{profile.per_cached_token * 1e6:.3g} us for each token that its requests hold."
    )
    return said


def _passes(profile: CostProfile) -> Table:
    from adaptspec.tables import Table

    columns = (f"{tokens} token{'s' if tokens > 1 else ''}" for tokens in profile.tokens)
    table = Table("rows", *columns, title="milliseconds of a pass of the target, by rows and tokens of each row")
    for rows, line in zip(profile.rows, profile.verify, strict=True):
        table.add_row(str(rows), *(f"{seconds * 1e3:.3f}" for seconds in line))
    return table


def _drafting(profile: CostProfile) -> Table:
    from adaptspec.tables import Table

    columns = ("rows", "step", "first step beyond that", "reading a token")
    table = Table("drafter", *columns, title="milliseconds of drafting", keys=2)
    for name, cost in sorted(profile.drafters.items()):
        for rows, seconds in zip(cost.rows, cost.step_seconds, strict=True):
            times = (seconds, cost.start_seconds, cost.catch_up_per_token)
            table.add_row(name, str(rows), *(f"{one * 1e3:.3f}" for one in times))
    return table

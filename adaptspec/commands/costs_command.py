"""`adaptspec costs ...`: what rounds cost on this machine, which decides whether drafting pays."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from adaptspec.command_line import add_table_forms
from adaptspec.commands.arguments import add_models, engine_config, tell
from adaptspec.errors import ConfigError

if TYPE_CHECKING:
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
    return _print(files, arguments)


def _measure(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from adaptspec.engine.assembly import build
    from adaptspec.engine.cost_files import NO_FOLDER, read_cost_file
    from adaptspec.engine.profiler import cost_path, measured_costs
    from adaptspec.start_status import StartStatus

    config = engine_config(arguments)
    with StartStatus(Console(stderr=True), "starting") as status:
        built = build(config, costs=measured_costs, progress=status)
    path = cost_path(built.target, built.drafters, config.limits.max_rows)
    if path is None:
        raise ConfigError(NO_FOLDER)
    try:
        kept = read_cost_file(path)
    except (OSError, ValueError, ConfigError):
        kept = None
    if kept is None or kept.profile != built.costs.profile:
        sys.stderr.write(f"{path}: the table was not kept, see above; measure again when the machine is quiet\n")
        return 1
    return _print([kept], arguments)


def _print(files: Sequence[CostFile], arguments: argparse.Namespace) -> int:
    from adaptspec.engine.cost_files import NO_FOLDER, costs_folder

    folder = costs_folder()
    now = datetime.now(timezone.utc)
    body = {"folder": None if folder is None else str(folder), "tables": [file.to_json(now) for file in files]}
    parts: list[Table | str] = [part for file in files for part in _report(file, now)]
    if not parts:
        parts = [
            f"{folder}: no costs were measured yet. `adaptspec serve` does at its first start with a model, "
            "`adaptspec costs measure` does now."
            if folder is not None
            else f"{NO_FOLDER}. Without one they are measured at every start."
        ]
    return tell(arguments, body, parts)


def _report(file: CostFile, now: datetime) -> list[Table | str]:
    from adaptspec.tables import Table

    profile = file.profile
    columns = (f"{tokens} token{'s' if tokens > 1 else ''}" for tokens in profile.tokens)
    passes = Table("rows", *columns, title="milliseconds of a pass of the target, by rows and tokens of each row")
    for rows, line in zip(profile.rows, profile.verify, strict=True):
        passes.add_row(str(rows), *(f"{seconds * 1e3:.3f}" for seconds in line))
    times_of = ("rows", "step", "first step beyond that", "reading a token")
    drafting = Table("drafter", *times_of, title="milliseconds of drafting", keys=2)
    for name, cost in sorted(profile.drafters.items()):
        for rows, seconds in zip(cost.rows, cost.step_seconds, strict=True):
            times = (seconds, cost.start_seconds, cost.catch_up_per_token)
            drafting.add_row(name, str(rows), *(f"{one * 1e3:.3f}" for one in times))
    return [
        str(file.path),
        file.origin(now),
        passes,
        *([drafting] if drafting.rows else []),
        f"Beside its passes a round takes {profile.overhead * 1e3:.3g} ms, and "
        f"{profile.per_cached_token * 1e6:.3g} us for each token that its requests hold.",
    ]

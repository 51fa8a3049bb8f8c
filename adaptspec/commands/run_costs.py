"""What `adaptspec costs show` does: cost tables for people and programs. Loads no models."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from datetime import datetime, timezone

from adaptspec.control.cost import CostProfile
from adaptspec.engine.cost_files import CostFile, cost_files, costs_folder, read_cost_file
from adaptspec.errors import ConfigError
from adaptspec.tables import Table, show


def run_show(arguments: argparse.Namespace) -> int:
    """Show what was measured; the exit status is 0.

    Raises:
        ConfigError: the file that is asked for cannot be used.
    """
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
    print_costs(files, arguments)
    return 0


def print_costs(files: Sequence[CostFile], arguments: argparse.Namespace) -> None:
    """In the form that is asked for."""
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
    columns = (f"{tokens} token{'s' if tokens > 1 else ''}" for tokens in profile.tokens)
    table = Table("rows", *columns, title="milliseconds of a pass of the target, by rows and tokens of each row")
    for rows, line in zip(profile.rows, profile.verify, strict=True):
        table.add_row(str(rows), *(f"{seconds * 1e3:.3f}" for seconds in line))
    return table


def _drafting(profile: CostProfile) -> Table:
    columns = ("rows", "step", "first step beyond that", "reading a token")
    table = Table("drafter", *columns, title="milliseconds of drafting", keys=2)
    for name, cost in sorted(profile.drafters.items()):
        for rows, seconds in zip(cost.rows, cost.step_seconds, strict=True):
            times = (seconds, cost.start_seconds, cost.catch_up_per_token)
            table.add_row(name, str(rows), *(f"{one * 1e3:.3f}" for one in times))
    return table

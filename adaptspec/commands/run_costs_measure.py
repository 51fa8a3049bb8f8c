"""What `adaptspec costs measure` does: times models on this machine, in place of what its cache says."""

from __future__ import annotations

import argparse
import sys

from rich.console import Console

from adaptspec.commands.engine_settings import engine_config
from adaptspec.commands.run_costs import print_costs
from adaptspec.engine.build import build
from adaptspec.engine.cost_files import read_cost_file
from adaptspec.engine.profiler import cost_path, measured_costs
from adaptspec.errors import ConfigError


def run_measure(arguments: argparse.Namespace) -> int:
    """Measure, keep and show; the exit status is 1 if the table was not kept.

    Raises:
        AdaptSpecError: a model or setting cannot be used; the message says what to do.
    """
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
    print_costs([kept], arguments)
    return 0

"""What `adaptspec bench record` does, with the models that the command line names."""

from __future__ import annotations

import argparse

from adaptspec.bench.record import run_record
from adaptspec.commands.engine_settings import engine_config


def run_bench_record(arguments: argparse.Namespace) -> int:
    """Record; the exit status is 0."""
    return run_record(engine_config(arguments), arguments)

"""`adaptspec bench ...`: measure this machine's speed and exactness, record tapes."""

from __future__ import annotations

import argparse

from adaptspec.bench.command import add_benchmarks
from adaptspec.bench.record import add_record_arguments, run_record
from adaptspec.commands.arguments import add_models, engine_config


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `adaptspec bench`."""
    record = add_benchmarks(parser).add_parser("record", help="record tapes for `adaptspec policy simulate`")
    add_record_arguments(record)
    add_models(record)
    record.set_defaults(run=lambda arguments: run_record(engine_config(arguments), arguments))

"""`adaptspec costs ...`: what rounds cost on this machine, which decides whether drafting pays."""

from __future__ import annotations

import argparse
from pathlib import Path

from adaptspec.command_line import add_table_forms, later
from adaptspec.commands.arguments import add_models


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `adaptspec costs`."""
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    one = actions.add_parser("show", help="the tables that were measured here: where they are, how old, of what")
    one.add_argument("file", type=Path, nargs="?", help="only this file (default: all of this user's cache)")
    add_table_forms(one, json=True)
    one.set_defaults(run=later("adaptspec.commands.run_costs:run_show"))
    one = actions.add_parser("measure", help="measure models anew, and keep the table for the next start")
    one.description = (
        "Measure what passes of these models cost on this machine, as a server does at its first start, and put the "
        "table in place of the one in the cache. Takes some seconds; nothing else should run meanwhile."
    )
    add_models(one)
    add_table_forms(one, json=True)
    one.set_defaults(run=later("adaptspec.commands.run_costs_measure:run_measure"))

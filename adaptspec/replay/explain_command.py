"""The command `policy explain`: its arguments, and what it prints."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console

from adaptspec.errors import ConfigError
from adaptspec.replay.explain import explain
from adaptspec.replay.explain_report import depths_table, reasons_table, rounds_table, sentences, tasks_table
from adaptspec.replay.journal import JournalLog, named_policy

_ROUNDS = 40


def add_explain_arguments(parser: argparse.ArgumentParser) -> None:
    """Give a parser the arguments of `policy explain`; its `run` then serves as the command."""
    parser.description = (
        "Say why a policy chose the depths it did, from the journal of a server (`serve --journal FILE`), summed up or "
        "round by round. Only rounds that this policy decided are explained, where the journal has others too."
    )
    parser.add_argument("policy", metavar="NAME|FILE", help="a policy that was served: its name or its YAML file")
    parser.add_argument("--journal", type=Path, required=True, metavar="FILE", help="the file given to serve --journal")
    parser.add_argument("--request", metavar="ID", help="only this request (the id in its response), round by round")
    parser.add_argument("--rounds", type=int, metavar="N", help="also print the last N rounds")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run_explain)


def run_explain(arguments: argparse.Namespace) -> int:
    """Explain and print; the exit status is 0.

    Raises:
        JournalError: it cannot be read, or has no rounds of the policy or request.
        ConfigError, PolicyError: an argument cannot be used.
    """
    rounds = arguments.rounds
    if rounds is not None and rounds < 0:
        raise ConfigError(f"--rounds {rounds}: give a number of rounds")
    if rounds is None:
        rounds = _ROUNDS if arguments.request is not None else 0
    name, spec = named_policy(arguments.policy)
    found = explain(JournalLog(arguments.journal), name, request=arguments.request, rounds=rounds)
    if arguments.json:
        sys.stdout.write(json.dumps(found.to_json(), indent=1, allow_nan=False) + "\n")
        return 0
    console = Console(highlight=False)
    for line in sentences(found, spec):
        console.print(line)
    if found.total.rows:
        for table in (reasons_table(found), depths_table(found), tasks_table(found)):
            console.print(table)
    if found.lines:
        console.print(rounds_table(list(found.lines)))
    return 0

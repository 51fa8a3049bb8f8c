"""What the command `policy explain` does and prints."""

from __future__ import annotations

import argparse
import json
import sys

from adaptspec.analysis.explain import explain
from adaptspec.analysis.explain_report import depths_table, reasons_table, rounds_table, sentences, tasks_table
from adaptspec.analysis.journal_rounds import JournalLog, named_policy, served_policy
from adaptspec.errors import ConfigError
from adaptspec.tables import Table, show

_ROUNDS = 40


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
    policy = arguments.policy or served_policy(arguments.journal, arguments.request)
    name, spec = named_policy(policy)
    log = JournalLog(arguments.journal)
    found = explain(log, name, request=arguments.request, rounds=rounds)
    if arguments.json:
        sys.stdout.write(json.dumps(found.to_json(), indent=1, allow_nan=False) + "\n")
        return 0
    said: list[Table | str] = [*sentences(found, spec)]
    others = [f"{other} ({count} requests)" for other, count in log.policies.most_common() if other != name]
    if arguments.policy is None and others:
        said.append(f"The journal has rounds of other policies, too: {', '.join(others)}; name one to explain it.")
    if found.total.rows:
        said += [reasons_table(found), depths_table(found), tasks_table(found)]
    if found.lines:
        said.append(rounds_table(list(found.lines)))
    show(said, arguments.form)
    return 0

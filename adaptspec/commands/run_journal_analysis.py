"""What `adaptspec policy explain` and `policy estimate` make of a journal; the exit status is 0."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from adaptspec.analysis.explain import explain
from adaptspec.analysis.explain_report import depths_table, reasons_table, rounds_table, sentences, tasks_table
from adaptspec.analysis.importance_weighting import Interval
from adaptspec.analysis.journal_rounds import JournalLog, named_policy, served_policy
from adaptspec.analysis.off_policy import OffPolicyEstimate, estimate, exploring_policies
from adaptspec.control.language.build import load_policy_spec
from adaptspec.control.language.library import find_policy
from adaptspec.errors import ConfigError, JournalError
from adaptspec.tables import Table, show

_ROUNDS = 40  # that are shown of a request where nobody says how many


def run_explain(arguments: argparse.Namespace) -> int:
    """Say why a policy chose what it did. Raises JournalError: it cannot be read, or has no rounds of the policy or
    request; ConfigError, PolicyError: an argument cannot be used.
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
        print(json.dumps(found.to_json(), indent=1, allow_nan=False))
        return 0
    said: list[Table | str] = [*sentences(found, spec)]
    others = [f"{other} ({count} requests)" for other, count in log.policies.most_common() if other != name]
    if arguments.policy is None and others:
        said.append(f"The journal has rounds of other policies, too: {', '.join(others)}; name one to explain it.")
    if found.total.rows:
        said += [reasons_table(found), depths_table(found), tasks_table(found)]
    if found.lines:
        said.append(rounds_table(found.lines))
    show(said, arguments.form)
    return 0


def run_estimate(arguments: argparse.Namespace) -> int:
    """Estimate a policy from the journal of another. Raises JournalError: it cannot be read, has no propensities, or
    too little overlap with the policy; ConfigError, PolicyError: an argument or the policy cannot be used.
    """
    if not arguments.clip >= 1.0:
        raise ConfigError(f"--clip {arguments.clip:g}: the largest weight is at least 1")
    if not 0.5 <= arguments.level < 1.0:
        raise ConfigError(f"--level {arguments.level:g}: give a probability from 0.5 to below 1, such as 0.95")
    spec = load_policy_spec(find_policy(arguments.policy))
    logged = arguments.logged or _explored_most(arguments.journal)
    found = estimate(JournalLog(arguments.journal), spec, logged, clip=arguments.clip, level=arguments.level)
    if arguments.json:
        print(json.dumps(found.to_json(), indent=1, allow_nan=False))
        return 0
    print("\n".join(_estimated(found, arguments.level)))
    return 0


def _explored_most(path: Path) -> str:
    log = JournalLog(path)
    explored = exploring_policies(log)
    if not explored:
        raise JournalError(
            f"{path}: no round was decided by chance (there are no propensities), by any of its policies "
            f"({', '.join(log.policies) or 'none'}); serve one that explores, such as examples/logging_policy.yaml, or "
            "simulate on a tape"
        )
    return explored.most_common(1)[0][0]


def _estimated(found: OffPolicyEstimate, level: float) -> list[str]:
    result = found.result
    said = [
        f"{found.policy} would have delivered {result.goodput.value:,.0f} tokens per second "
        f"({level:.0%}: {_range(result.goodput, 0)}),",
        f"{result.over_logged.value:.3f} x ({_range(result.over_logged, 3)}) the {result.logged:,.0f} of "
        f"{found.logged}, which served.",
        f"From {found.rounds:,} rounds: it decides alike in {result.matched:,}, which weigh as much as "
        f"{result.effective:,.0f} equal ones.",
    ]
    if result.clipped > 0.0:
        said.append(f"{result.clipped:.1%} of the weight was clipped, which draws the estimate towards {found.logged}.")
    gone = [f"{count:,} {why}" for why, count in found.left_out.items() if count and why != "impossible"]
    if gone:
        said.append(f"Left out: {', '.join(gone)}.")
    if found.learns:
        said.append(
            f"{found.policy} learns as it goes: here it learned from those {result.matched:,} rounds only, and was "
            "judged meanwhile. Where it serves it may do better; simulate it on a tape to know."
        )
    if found.uncovered > 0.1:
        said.append(
            f"In {found.uncovered:.0%} of the rounds {found.logged} could not have done what {found.policy} would do: "
            "the estimate is for the others, which may be unlike them."
        )
    return said


def _range(interval: Interval, digits: int) -> str:
    return f"{interval.low:,.{digits}f} to {interval.high:,.{digits}f}"

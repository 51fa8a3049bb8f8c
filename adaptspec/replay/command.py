"""What the command `policy simulate` does."""

from __future__ import annotations

import argparse
import json
import sys

from rich.console import Console
from rich.progress import Progress

from adaptspec.control.language.build import load_policy_spec
from adaptspec.control.language.library import find_policy
from adaptspec.control.language.spec import PolicySpec
from adaptspec.errors import ConfigError
from adaptspec.replay.cells import mixed_cells, task_cells
from adaptspec.replay.costs import MachineCosts, load_costs, shipped_costs
from adaptspec.replay.journal_tape import narrowed, tape_of_journal
from adaptspec.replay.plot import plot_report, plotting
from adaptspec.replay.report import simulate
from adaptspec.replay.streams import Schedule
from adaptspec.replay.tape import Tape, join
from adaptspec.replay.tape_file import find_tape, load_tape
from adaptspec.replay.world import WorldSettings
from adaptspec.tables import show


def run_simulate(arguments: argparse.Namespace) -> int:
    """Simulate and print; the exit status is 0.

    Raises:
        TapeError, ConfigError, PolicyError: an argument cannot be used, or costs have impossible results.
    """
    if arguments.plot is not None:
        plotting()  # missing, it should not cost a whole simulation to find out
    tape, machines = _recorded(arguments)
    if arguments.temperature is not None:
        tape = tape.at_temperature(arguments.temperature)
    if arguments.requests < 0:
        raise ConfigError(f"--requests {arguments.requests}: give a number of requests, or 0 for all")
    if arguments.requests:
        tape = tape.thinned(arguments.requests)
    policies = _policies(arguments, tape)
    schedules = [Schedule.parse(text.strip()) for text in arguments.batch.split(",")]
    cells = (mixed_cells if arguments.mixed else task_cells)(tape, schedules)
    settings = WorldSettings(prefill_tokens=arguments.prefill, noise=arguments.noise, seed=arguments.seed)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("simulate", total=len(cells) * len(machines))
        report = simulate(policies, cells, machines, settings, tick=lambda: progress.advance(bar))
    report.check()
    if arguments.plot is not None:
        plot_report(report, arguments.plot)
    if arguments.json:
        sys.stdout.write(json.dumps(report.to_json(), indent=1, allow_nan=False) + "\n")
    else:
        show([report.table(), report.summary()], arguments.form)
    return 0


def _policies(arguments: argparse.Namespace, tape: Tape) -> list[PolicySpec]:
    """What is to be simulated; from a journal with the drafters that it can replay, and a word on those left out."""
    policies = [load_policy_spec(find_policy(name)) for name in arguments.policy or ["goodput"]]
    if len({spec.name for spec in policies}) < len(policies):
        raise ConfigError("two of the policies have one name; rename one of them (metadata.name)")
    if arguments.journal is None:
        return policies
    known = tuple(tape.drafters)
    here = [narrowed(spec, known) for spec in policies]
    for asked, replayed in zip(policies, here, strict=True):
        missing = [name for name in asked.drafters if name not in replayed.drafters]
        if missing:
            sys.stderr.write(
                f"policy {asked.name} is simulated without {', '.join(missing)}: a journal can replay only drafts of "
                f"{', '.join(known)}\n"
            )
    return here


def _recorded(arguments: argparse.Namespace) -> tuple[Tape, list[MachineCosts]]:
    """What is replayed, and what it costs."""
    costs = [load_costs(name) for name in arguments.cost]
    if arguments.journal is None:
        tape = join([load_tape(find_tape(name)) for name in arguments.tape])
        return tape, costs or [load_costs(name) for name in shipped_costs()]
    read = tape_of_journal(arguments.journal, arguments.seed)
    sys.stderr.write(
        f"{arguments.journal}: {len(read.tape)} whole requests; whether the draft agrees is known for {read.known:.0%} "
        "of their positions, and drawn from these for the others. Costs are fitted to "
        f"{read.rounds} rounds, {read.plain} of them plain"
        f"{'' if read.plain else ': ratios to plain decoding rest on what the server measured at its start'}\n"
    )
    return read.tape, costs or [read.costs]

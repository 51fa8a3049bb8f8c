"""The command `policy simulate`: its arguments, and what it does with them."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from adaptspec.command_line import add_table_forms
from adaptspec.control.library import find_policy
from adaptspec.control.spec import PolicySpec, load_policy_spec
from adaptspec.errors import ConfigError
from adaptspec.replay.cells import mixed_cells, task_cells
from adaptspec.replay.costs import MachineCosts, load_costs, shipped_costs
from adaptspec.replay.journal_tape import narrowed, tape_of_journal
from adaptspec.replay.plot import plot_report, plotting
from adaptspec.replay.report import simulate
from adaptspec.replay.streams import Schedule
from adaptspec.replay.tape import Tape, join
from adaptspec.replay.tape_file import BUNDLED, find_tape, load_tape
from adaptspec.replay.world import WorldSettings
from adaptspec.tables import show

# All of the bundled tape at batch sizes 1, 4, 16 and 64 takes minutes; these take under half a minute.
_BATCHES, _REQUESTS = "1,16", 20


def add_simulate_arguments(parser: argparse.ArgumentParser) -> None:
    """Give a parser the arguments of `policy simulate`; its `run` then serves as the command."""
    parser.description = (
        "Replay policies over tapes of recorded requests, round by round, and compare what they would have earned with "
        "plain decoding, every fixed depth and an oracle that knows every agreement. Deterministic; needs no model."
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--tape",
        nargs="+",
        default=[BUNDLED],
        metavar="NAME|FILE",
        help="tapes, as `bench record` writes them; 'bundled' is of the bundled pair (default: %(default)s)",
    )
    source.add_argument(
        "--journal",
        type=Path,
        metavar="FILE",
        help="the journal of a server (`serve --journal`) in place of a tape, with the costs it measured. A journal "
        "knows only what was drafted: where the server drafted less than a policy would, agreement is drawn from like "
        "positions, so results for deeper drafts are guesses; a tape knows them all",
    )
    parser.add_argument(
        "--cost",
        action="append",
        default=[],
        metavar="NAME|FILE",
        help=f"what rounds cost: {', '.join(shipped_costs())}, or a JSON file; may be given again "
        "(default: all that ship; with --journal, what its server measured)",
    )
    parser.add_argument(
        "--policy",
        action="append",
        default=[],
        metavar="NAME|FILE",
        help="a shipped policy or a YAML file; may be given again (default: goodput)",
    )
    parser.add_argument(
        "--batch",
        default=_BATCHES,
        help="batch sizes, comma-separated; dashes for stages of one stream, as in 1-16-1 (default: %(default)s)",
    )
    parser.add_argument(
        "--requests",
        type=int,
        default=_REQUESTS,
        metavar="N",
        help="at most so many requests of each task, spread over the tape; 0: all (default: %(default)s)",
    )
    parser.add_argument("--mixed", action="store_true", help="only streams that mix all tasks, not each task by itself")
    parser.add_argument("--temperature", type=float, help="only requests recorded at this temperature")
    parser.add_argument(
        "--prefill", type=int, default=0, metavar="TOKENS", help="prompt tokens read per round; 0: free"
    )
    parser.add_argument("--noise", type=float, default=0.0, help="sigma of log-normal noise on times (default: none)")
    parser.add_argument("--seed", type=int, default=0, help="of the noise, and of draws under rejection")
    add_table_forms(parser, json=True)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the cells into a .png, .svg or .pdf")
    parser.set_defaults(run=run_simulate)


def run_simulate(arguments: argparse.Namespace) -> int:
    """Simulate and print; the exit status is 0.

    Raises:
        TapeError, ConfigError, PolicyError: an argument cannot be used.
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
        "of their positions, and drawn from these for the others\n"
    )
    return read.tape, costs or [read.costs]

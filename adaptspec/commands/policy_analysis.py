"""The arguments of `adaptspec policy simulate|explain|estimate|tune`, which replay what was recorded."""

from __future__ import annotations

import argparse
from pathlib import Path

from adaptspec.command_line import add_table_forms, later
from adaptspec.commands.arguments import complete_policies

MACHINES = "cpu-2-cores, gpu-8b"  # whose costs ship


def add_simulate_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `policy simulate`."""
    parser.description = (
        "Replay policies over tapes of recorded requests, round by round, and compare what they would have earned with "
        "plain decoding, every fixed depth and an oracle that knows every agreement. Deterministic; needs no model."
    )
    source = parser.add_mutually_exclusive_group()
    _add_tape(source)
    source.add_argument(
        "--journal",
        type=Path,
        metavar="FILE",
        help="the journal of a server (`serve --journal`) in place of a tape, with costs as its rounds tell. A journal "
        "knows only what was drafted: where the server drafted less than a policy would, agreement is drawn from like "
        "positions, so results for deeper drafts are guesses; a tape knows them all",
    )
    _add_cost(parser, "all that ship; with --journal, what its rounds took")
    complete_policies(
        parser.add_argument(
            "--policy",
            action="append",
            default=[],
            metavar="NAME|FILE",
            help="a shipped policy or a YAML file; may be given again (default: goodput)",
        )
    )
    # All of the bundled tape at batch sizes 1, 4, 16 and 64 takes minutes; the defaults take under half a minute.
    _add_traffic(parser, batch="1,16", requests=20)
    parser.add_argument("--mixed", action="store_true", help="only streams that mix all tasks, not each task by itself")
    parser.add_argument("--temperature", type=float, help="only requests recorded at this temperature")
    parser.add_argument(
        "--prefill", type=int, default=0, metavar="TOKENS", help="prompt tokens read per round; 0: free"
    )
    parser.add_argument("--noise", type=float, default=0.0, help="sigma of log-normal noise on times (default: none)")
    parser.add_argument("--seed", type=int, default=0, help="of the noise, and of draws under rejection")
    add_table_forms(parser, json=True)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the cells into a .png, .svg or .pdf")
    parser.set_defaults(run=later("adaptspec.commands.run_simulation:run_simulate"))


def add_explain_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `policy explain`."""
    parser.description = (
        "Say why a policy chose the depths it did, from the journal of a server (`serve --journal FILE`), summed up or "
        "round by round. Only rounds that this policy decided are explained, where the journal has others too."
    )
    parser.add_argument(
        "policy",
        nargs="?",
        metavar="NAME|FILE",
        help="a policy that was served: its name or its YAML file (default: the request's with --request, else the "
        "journal's default policy, or who served most requests where that one served none)",
    )
    parser.add_argument("--journal", type=Path, required=True, metavar="FILE", help="the file given to serve --journal")
    parser.add_argument("--request", metavar="ID", help="only this request (the id in its response), round by round")
    parser.add_argument("--rounds", type=int, metavar="N", help="also print the last N rounds")
    add_table_forms(parser, json=True)
    parser.set_defaults(run=later("adaptspec.commands.run_journal_analysis:run_explain"))


def add_estimate_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `policy estimate`."""
    parser.description = (
        "Estimate what a policy would have earned on the traffic of a journal, from rounds in which the policy that "
        "served did by chance what this one would have done, each weighted by one over the probability of that "
        "(importance weighting). Measured times and tokens only: no tape, no model of costs. Needs the journal of a "
        "policy that explores, best one made for it (examples/logging_policy.yaml), and no guard that overrules it."
    )
    complete_policies(
        parser.add_argument("policy", metavar="NAME|FILE", help="the policy to judge: one without stop rules")
    )
    parser.add_argument("--journal", type=Path, required=True, metavar="FILE", help="the file given to serve --journal")
    parser.add_argument("--logged", metavar="NAME", help="the policy whose rounds to use (default: who explored most)")
    parser.add_argument(
        "--clip", type=float, default=50.0, metavar="W", help="the largest weight of a round (default: %(default)s)"
    )
    parser.add_argument(
        "--level", type=float, default=0.95, metavar="P", help="of the confidence interval (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=later("adaptspec.commands.run_journal_analysis:run_estimate"))


def add_tune_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `policy tune`."""
    parser.description = (
        "Search a policy's parameters on tapes. Half of the prompts are searched on, the others decide: what they do "
        "not confirm is not claimed, and the original is kept. Deterministic for a seed."
    )
    complete_policies(parser.add_argument("policy", metavar="NAME|FILE", help="the policy to start from"))
    _add_tape(parser)
    _add_cost(parser, "cpu-2-cores")
    _add_traffic(parser, batch="1", requests=24)
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="space",
        metavar="PATH=LOW..HIGH",
        help="what to search, such as spec.choose.optimism=0..1 or spec.choose.scope=request|task; may be given again "
        "(default: every number but the guards', within a factor of four of its value and the schema's bounds)",
    )
    parser.add_argument("--budget", type=int, default=24, help="candidates to try (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the search (default: %(default)s)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the policy here, comments kept")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=later("adaptspec.commands.run_simulation:run_tune"))


def _add_tape(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--tape",
        nargs="+",
        default=["bundled"],
        metavar="NAME|FILE",
        help="tapes, as `bench record` writes them; 'bundled' is of the bundled pair (default: %(default)s)",
    )


def _add_cost(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument(
        "--cost",
        action="append",
        default=[],
        metavar="NAME|FILE",
        help=f"what rounds cost: {MACHINES}, or a JSON file; may be given again (default: {default})",
    )


def _add_traffic(parser: argparse.ArgumentParser, *, batch: str, requests: int) -> None:
    parser.add_argument(
        "--batch",
        default=batch,
        help="batch sizes, comma-separated; dashes for stages of one stream, as in 1-16-1 (default: %(default)s)",
    )
    parser.add_argument(
        "--requests",
        type=int,
        default=requests,
        metavar="N",
        help="at most so many requests of each task, spread over the tape; 0: all (default: %(default)s)",
    )

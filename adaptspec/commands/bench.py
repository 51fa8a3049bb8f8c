"""`adaptspec bench ...`: measure this machine's speed and exactness, record tapes."""

from __future__ import annotations

import argparse
from pathlib import Path

from adaptspec.command_line import add_table_forms, later
from adaptspec.commands.arguments import add_models, complete_policies


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `adaptspec bench`."""
    commands = parser.add_subparsers(metavar="BENCHMARK", required=True)
    quick = commands.add_parser("quick", help="speed at batch 1, greedy, against transformers and fixed depths")
    quick.add_argument("--repeats", type=int, default=5, help="interleaved repeats (default: %(default)s)")
    quick.add_argument("--prompts", type=int, default=3, help="prompts per task (default: %(default)s)")
    quick.add_argument(
        "--disturb", action="store_true", help="also beside two busy processes, the models loaded anew beside them"
    )
    complete_policies(
        quick.add_argument("--policy", default="goodput", metavar="NAME|FILE", help="(default: %(default)s)")
    )
    exact = commands.add_parser("exactness", help="greedy output against transformers, token for token")
    exact.add_argument("--prompts", type=int, default=20, help="prompts per task (default: %(default)s)")
    exact.add_argument("--policies", action="store_true", help="not only fixed depths but every shipped policy, too")
    exact.add_argument(
        "--dtype",
        choices=("float32", "float16", "bfloat16"),
        default="float32",
        help="what to compute in (default: %(default)s)",
    )
    decisions = commands.add_parser("decisions", help="what deciding and learning take per round")
    complete_policies(
        decisions.add_argument(
            "--policy", action="append", metavar="NAME|FILE", help="may be repeated (default: all shipped)"
        )
    )
    decisions.add_argument("--tape", default="bundled", metavar="NAME|FILE", help="(default: %(default)s)")
    decisions.add_argument("--cost", default="cpu-2-cores", metavar="NAME|FILE", help="(default: %(default)s)")
    telemetry = commands.add_parser("telemetry", help="what watching costs, also where collectors misbehave")
    telemetry.add_argument("--requests", type=int, default=400, help="per collector (default: %(default)s)")
    telemetry.add_argument("--prompts", type=int, default=4, help="prompts per task (default: %(default)s)")
    for command, tokens in ((quick, 128), (exact, 128), (telemetry, 64)):
        command.add_argument("--tokens", type=int, default=tokens, help="tokens per answer (default: %(default)s)")
        _add_workloads(command)
    for command in (quick, exact):
        command.add_argument("--device", default="cpu", help="cpu or cuda (default: %(default)s)")
    for command, name in ((quick, "quick"), (exact, "exactness"), (decisions, "decisions"), (telemetry, "telemetry")):
        add_table_forms(command, json=True)
        command.set_defaults(run=later(f"adaptspec.bench.command:{name}"))
    record = commands.add_parser("record", help="record tapes for `adaptspec policy simulate`")
    add_record_arguments(record)
    add_models(record)
    record.set_defaults(run=later("adaptspec.commands.run_bench:run_bench_record"))


def add_record_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `bench record`, beside those that say which models to load."""
    parser.description = (
        "Record tapes: answer the prompts by plain decoding and note, for every position of every answer, what each "
        "drafter would have proposed. `adaptspec policy simulate` replays them."
    )
    parser.add_argument("--out", type=Path, help="file to write, such as tape.npz")
    parser.add_argument(
        "--costs-out", type=Path, help="measure this machine's cost table anew, several times, and write its medians"
    )
    _add_workloads(parser)
    parser.add_argument("--prompts", type=int, default=16, help="prompts per task (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=160, help="most tokens per answer (default: %(default)s)")
    parser.add_argument("--temperatures", default="0,0.8", help="comma-separated; 0 is greedy (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="what the requests' seeds are made of")
    add_table_forms(parser, json=True)


def _add_workloads(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workloads", type=Path, help="folder of JSONL prompts (default: a built-in prompt a task)")

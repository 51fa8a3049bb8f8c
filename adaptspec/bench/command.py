"""`adaptspec bench quick|exactness|decisions|telemetry`: what they run and print (`--json`: one object).

They write nothing but their result to standard output, progress to standard error.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.progress import Progress

from adaptspec.bench.collectors import Load
from adaptspec.bench.decisions import DecisionSettings, run_decisions
from adaptspec.bench.disturbance import BUSY, disturbed
from adaptspec.bench.exactness import DEPTHS, run_exactness
from adaptspec.bench.quick import QuickSettings, run_quick
from adaptspec.bench.telemetry import TelemetrySettings, run_telemetry, telemetry_report
from adaptspec.bench.workloads import read_workloads
from adaptspec.control.language.build import load_policy_spec
from adaptspec.control.language.library import find_policy, shipped_policies
from adaptspec.engine.build import EngineConfig
from adaptspec.replay.costs import load_costs
from adaptspec.replay.tape_file import find_tape, load_tape
from adaptspec.tables import Table, show

Result = dict[str, Any]


def quick(arguments: argparse.Namespace) -> int:
    """Speed; the exit status is 0."""
    return _finish(arguments, _quick(arguments), _quick_report)


def exactness(arguments: argparse.Namespace) -> int:
    """Exactness; the exit status is 1 if text differed by more than rounding."""
    return _finish(arguments, _exactness(arguments), _exactness_report)


def decisions(arguments: argparse.Namespace) -> int:
    """What deciding takes; the exit status is 0."""
    return _finish(arguments, _decisions(arguments), _decisions_report)


def telemetry(arguments: argparse.Namespace) -> int:
    """What watching takes; the exit status is 0."""
    return _finish(arguments, _telemetry(arguments), telemetry_report)


def _finish(arguments: argparse.Namespace, result: Result, report: Callable[[Result], list[Table | str]]) -> int:
    if arguments.json:
        print(json.dumps(result, indent=1, allow_nan=False))
    else:
        show(report(result), arguments.form)
    return 1 if result.get("unexplained") else 0


def _quick(arguments: argparse.Namespace) -> Result:
    workloads = read_workloads(arguments.workloads, arguments.prompts)
    settings = QuickSettings(arguments.tokens, arguments.repeats, arguments.policy)
    config, steps = EngineConfig(device=arguments.device), settings.repeats * sum(map(len, workloads.values()))
    with Progress(console=Console(stderr=True)) as progress:
        work = progress.add_task("quick", total=steps * (2 if arguments.disturb else 1))
        result = run_quick(config, workloads, settings, lambda: progress.advance(work))
        if arguments.disturb:
            with disturbed():
                again = run_quick(config, workloads, settings, lambda: progress.advance(work))
            result["disturbed"] = {name: again[name] for name in ("milliseconds_per_token", "mean", "worst", "tasks")}
        return result


def _exactness(arguments: argparse.Namespace) -> Result:
    workloads = read_workloads(arguments.workloads, arguments.prompts)
    config = EngineConfig(device=arguments.device, dtype=arguments.dtype)
    with Progress(console=Console(stderr=True)) as progress:
        count = len(shipped_policies()) if arguments.policies else 0
        total = sum(map(len, workloads.values())) + 4 * (len(DEPTHS) + 1) + 2 * count
        work = progress.add_task("exactness", total=total)

        def tick(what: str) -> None:
            progress.update(work, advance=1, description=what)

        return run_exactness(config, workloads, arguments.tokens, tick, policies=arguments.policies)


def _decisions(arguments: argparse.Namespace) -> Result:
    names = arguments.policy or [path.stem for path in shipped_policies()]
    policies = [load_policy_spec(find_policy(name)) for name in names]
    tape, costs, settings = load_tape(find_tape(arguments.tape)), load_costs(arguments.cost), DecisionSettings()
    with Progress(console=Console(stderr=True)) as progress:
        work = progress.add_task("decisions", total=len(policies) * len(settings.batches))
        return run_decisions(policies, tape, costs, settings, lambda: progress.advance(work))


def _telemetry(arguments: argparse.Namespace) -> Result:
    workloads = read_workloads(arguments.workloads, arguments.prompts)
    settings = TelemetrySettings(load=Load(arguments.requests, tokens=arguments.tokens))
    with Progress(console=Console(stderr=True)) as progress:
        work = progress.add_task("telemetry", total=settings.steps)
        return run_telemetry(workloads, settings, lambda: progress.advance(work))


def _decisions_report(result: Result) -> list[Table | str]:
    table = Table(*result["policies"][0], title="decide + learn per round; simulated rounds of " + result["machine"])
    for row in result["policies"]:
        table.add_row(*(f"{value:.3g}" if isinstance(value, float) else str(value) for value in row.values()))
    return [table]


def _quick_report(result: Result) -> list[Table | str]:
    parts = _ratios(result, "speed ratios (medians; above 1 is faster)")
    if "disturbed" in result:
        parts += _ratios(result["disturbed"], f"the same beside {BUSY} busy processes")
    return parts


def _ratios(result: Result, title: str) -> list[Table | str]:
    table = Table("against", *result["tasks"], "mean", "worst", title=title)
    for name, mean in result["mean"].items():
        cells = [row[name]["median"] for row in result["tasks"].values()]
        table.add_row(name.replace("_", " "), *(f"{value:.2f}" for value in [*cells, mean, result["worst"][name]]))
    took = (f"{name.replace('_', ' ')} {value:.3f}" for name, value in result["milliseconds_per_token"].items())
    return [table, f"milliseconds per token: {', '.join(took)}"]


def _exactness_report(result: Result) -> list[Table | str]:
    columns = (
        "depth",
        "drafter",
        "batch",
        "changed",
        "divergent",
        "unexplained",
        "prompts_with_rejections",
        "drafted",
        "accepted",
    )
    title = f"{result['prompts']} prompts x {result['tokens']} tokens in {result['dtype']} against transformers"
    table = Table(*(column.replace("_", " ") for column in columns), title=title, keys=3)
    for row in result["settings"]:
        table.add_row(*(str(row[column]) for column in columns))
    where = ("depth", "drafter", "batch")
    differing = [
        json.dumps({name: row[name] for name in where} | divergence, default=str)
        for row in result["settings"]
        for divergence in row["divergences"]
    ]
    shares = ", ".join(f"{share:.1%} at depth {depth}" for depth, share in result["changed_share"].items())
    return [table, *differing, f"texts that are not those of plain decoding, one request at a time: {shares}"]

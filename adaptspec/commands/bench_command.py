"""`adaptspec bench ...`: measure this machine's speed and exactness, record tapes.

Nothing but results goes to standard output (`--json`: one object), progress to standard error.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptspec.command_line import add_table_forms
from adaptspec.commands.arguments import (
    add_models,
    add_policies,
    add_policy,
    engine_config,
    new_file,
    progress,
    seconds,
    tell,
)
from adaptspec.control.language.library import find_policy, shipped_policies
from adaptspec.drafters import DRAFTERS
from adaptspec.errors import ConfigError

if TYPE_CHECKING:
    from adaptspec.engine.assembly import Built
    from adaptspec.engine.engine_config import EngineConfig

Result = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `adaptspec bench`."""
    commands = parser.add_subparsers(metavar="BENCHMARK", required=True)
    quick = commands.add_parser("quick", help="speed at batch 1, greedy, against transformers and fixed depths")
    quick.add_argument("--repeats", type=int, default=5, help="interleaved repeats (default: %(default)s)")
    quick.add_argument("--prompts", type=int, default=3, help="prompts per task (default: %(default)s)")
    quick.add_argument(
        "--disturb", action="store_true", help="also beside two busy processes, the models loaded anew beside them"
    )
    add_policy(quick, "--policy", default="goodput", help="(default: %(default)s)")
    exact = commands.add_parser("exactness", help="greedy output against transformers, token for token")
    exact.add_argument("--prompts", type=int, default=20, help="prompts per task (default: %(default)s)")
    exact.add_argument("--policies", action="store_true", help="not only fixed depths but every shipped policy, too")
    exact.add_argument(
        "--drafter", action="append", choices=DRAFTERS, help="may be repeated (default: all that there are)"
    )
    exact.add_argument(
        "--dtype",
        choices=("float32", "float16", "bfloat16"),
        default="float32",
        help="what to compute in (default: %(default)s)",
    )
    policies = commands.add_parser("policies", help="speed of policies side by side, on the same prompts")
    add_policy(policies, "policies", nargs="+", help="two or more; speeds are ratios to the first one's")
    policies.add_argument("--temperature", type=float, default=0.0, help="(default: %(default)s)")
    policies.add_argument("--draft", default="auto", help="as of `adaptspec serve` (default: the bundled one)")
    heads = commands.add_parser("heads", help="what heads of random weights cost, at rest and with the default policy")
    for command, repeats, prompts in ((policies, 1, 6), (heads, 3, 2)):
        command.add_argument("--batch", type=int, default=1, help="prompts at once (default: %(default)s)")
        command.add_argument("--repeats", type=int, default=repeats, help="of every prompt (default: %(default)s)")
        command.add_argument("--prompts", type=int, default=prompts, help="prompts per task (default: %(default)s)")
    decisions = commands.add_parser("decisions", help="what deciding and learning take per round")
    add_policies(decisions, " (default: all shipped)")
    decisions.add_argument("--tape", default="bundled", metavar="NAME|FILE", help="(default: %(default)s)")
    decisions.add_argument("--cost", default="cpu-2-cores", metavar="NAME|FILE", help="(default: %(default)s)")
    trees = commands.add_parser("trees", help="what the best fixed chains, combs and trees of a tape earn")
    trees.add_argument("--tape", default="bundled", metavar="NAME|FILE", help="(default: %(default)s)")
    trees.add_argument("--cost", action="append", metavar="NAME|FILE", help="may be repeated (default: all that ship)")
    trees.add_argument("--drafter", default="draft-model", help="whose drafts (default: %(default)s)")
    telemetry = commands.add_parser("telemetry", help="what watching costs, also where collectors misbehave")
    telemetry.add_argument("--requests", type=int, default=400, help="per collector (default: %(default)s)")
    telemetry.add_argument("--prompts", type=int, default=4, help="prompts per task (default: %(default)s)")
    for command, tokens in ((quick, 128), (exact, 128), (policies, 128), (heads, 96), (telemetry, 64)):
        command.add_argument("--tokens", type=int, default=tokens, help="tokens per answer (default: %(default)s)")
        _add_workloads(command)
    for command in (quick, exact, policies):
        command.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (default: %(default)s)")
    runs = {
        quick: _quick,
        exact: _exactness,
        policies: _policies,
        heads: _heads,
        decisions: _decisions,
        trees: _trees,
        telemetry: _telemetry,
    }
    for command, run in runs.items():
        add_table_forms(command, json=True)
        command.set_defaults(run=run)
    gpu = commands.add_parser(
        "gpu", help="on a GPU, random models: bits, kernels, bandwidth, goodput, soak; minutes each"
    )
    gpu.add_argument(
        "--part",
        action="append",
        choices=("bits", "kernels", "bandwidth", "goodput", "soak"),
        help="may be repeated (default: all in turn)",
    )
    results = Path(__file__).parents[1] / "bench" / "results"
    gpu.add_argument("--out", type=Path, default=results, help="folder for JSON and reports (default: %(default)s)")
    gpu.add_argument("--device", default="auto", help="(default: %(default)s)")
    gpu.add_argument("--seconds", type=seconds, default=470.0, help="how long a part may take (default: %(default)s)")
    gpu.add_argument("--tiny", action="store_true", help="with small shapes, to see that all of it runs")
    gpu.set_defaults(run=_gpu)
    record = commands.add_parser("record", help="record tapes for `adaptspec policy simulate`")
    _add_record_arguments(record)
    add_models(record)
    record.set_defaults(run=_record)


def _add_record_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Record tapes: answer the prompts by plain decoding and note, for every position of every answer, what each "
        "drafter would have proposed. `adaptspec policy simulate` replays them."
    )
    add = parser.add_argument
    add("--out", type=new_file, help="file to write, such as tape.npz")
    add("--costs-out", type=new_file, help="measure this machine's costs anew, several times, and write the medians")
    _add_workloads(parser)
    add("--prompts", type=int, default=16, help="prompts per task (default: %(default)s)")
    add("--tokens", type=int, default=160, help="most tokens per answer (default: %(default)s)")
    add("--temperatures", default="0,0.8", help="comma-separated; 0 is greedy (default: %(default)s)")
    add("--seed", type=int, default=0, help="what the requests' seeds are made of")
    add("--no-history", action="store_true", help="drafters that learn from the requests before forget each of them")
    add_table_forms(parser, json=True)


def _add_workloads(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workloads", type=Path, help="folder of JSONL prompts (default: a built-in prompt a task)")


def _quick(arguments: argparse.Namespace) -> int:
    from adaptspec.bench.quick import QuickSettings, disturbed, quick_report, run_quick
    from adaptspec.bench.workloads import read_workloads
    from adaptspec.engine.engine_config import EngineConfig

    workloads = read_workloads(arguments.workloads, arguments.prompts)
    settings = QuickSettings(arguments.tokens, arguments.repeats, arguments.policy)
    config, steps = EngineConfig(device=arguments.device), settings.repeats * sum(map(len, workloads.values()))
    with progress("quick", steps * (2 if arguments.disturb else 1)) as tick:
        result = run_quick(config, workloads, settings, tick)
        if arguments.disturb:
            with disturbed():
                again = run_quick(config, workloads, settings, tick)
            result["disturbed"] = {name: again[name] for name in ("milliseconds_per_token", "mean", "worst", "tasks")}
    return tell(arguments, result, quick_report(result))


def _exactness(arguments: argparse.Namespace, check: Callable[..., Result] | None = None) -> int:
    """The exit status is 1 if text differed by more than rounding. `check` runs in place of `run_exactness`."""
    from adaptspec.bench.exactness import DEPTHS, exactness_report, run_exactness
    from adaptspec.bench.workloads import read_workloads
    from adaptspec.engine.engine_config import EngineConfig

    workloads = read_workloads(arguments.workloads, arguments.prompts)
    config = EngineConfig(device=arguments.device, dtype=arguments.dtype)
    count = len(shipped_policies()) if arguments.policies else 0
    total = sum(map(len, workloads.values())) + 4 * (len(DEPTHS) + 1) + 2 * count
    with progress("exactness", total) as tick:
        options = {"drafters": arguments.drafter or (), "policies": arguments.policies}
        result = (check or run_exactness)(config, workloads, arguments.tokens, tick, **options)
    tell(arguments, result, exactness_report(result))
    return 1 if result["unexplained"] else 0


def _policies(arguments: argparse.Namespace) -> int:
    from adaptspec.bench.side_by_side import SideBySideSettings, run_side_by_side, side_by_side_report
    from adaptspec.bench.workloads import read_workloads
    from adaptspec.engine.engine_config import EngineConfig

    workloads = read_workloads(arguments.workloads, arguments.prompts)
    settings = SideBySideSettings(
        arguments.policies, arguments.tokens, arguments.batch, arguments.temperature, arguments.repeats
    )
    groups = sum(-(-len(prompts) // settings.batch) for prompts in workloads.values())
    with progress("policies", groups * settings.repeats) as tick:
        config = engine_config(arguments, EngineConfig(device=arguments.device))
        result = run_side_by_side(config, workloads, settings, tick)
    return tell(arguments, result, side_by_side_report(result))


def _heads(arguments: argparse.Namespace) -> int:
    from adaptspec.bench.random_heads import KINDS, random_heads_report, run_random_heads
    from adaptspec.bench.side_by_side import SideBySideSettings
    from adaptspec.bench.workloads import read_workloads
    from adaptspec.engine.engine_config import EngineConfig

    workloads = read_workloads(arguments.workloads, arguments.prompts)
    settings = SideBySideSettings(("off", "goodput"), arguments.tokens, arguments.batch, repeats=arguments.repeats)
    groups = sum(-(-len(prompts) // settings.batch) for prompts in workloads.values())
    with progress("heads", len(KINDS) * groups * settings.repeats) as tick:
        result = run_random_heads(EngineConfig(), workloads, settings, tick)
    return tell(arguments, result, random_heads_report(result))


def _decisions(arguments: argparse.Namespace) -> int:
    from adaptspec.bench.decisions import DecisionSettings, run_decisions
    from adaptspec.control.language.build import load_policy_spec
    from adaptspec.simulation.cost_profiles import load_costs
    from adaptspec.simulation.tape_file import find_tape, load_tape
    from adaptspec.tables import table_of

    names = arguments.policy or [path.stem for path in shipped_policies()]
    policies = [load_policy_spec(find_policy(name)) for name in names]
    tape, costs, settings = load_tape(find_tape(arguments.tape)), load_costs(arguments.cost), DecisionSettings()
    with progress("decisions", len(policies) * len(settings.batches)) as tick:
        result = run_decisions(policies, tape, costs, settings, tick)
    title = "decide + learn per round; simulated rounds of " + costs.name
    return tell(arguments, result, [table_of(result["policies"], title)])


def _trees(arguments: argparse.Namespace) -> int:
    from adaptspec.analysis.static_trees import compare_shapes, shapes_table
    from adaptspec.simulation.cost_profiles import load_costs, shipped_costs
    from adaptspec.simulation.tape_file import find_tape, load_tape

    tape = load_tape(find_tape(arguments.tape))
    machines = [load_costs(name) for name in arguments.cost or shipped_costs()]
    lines = compare_shapes(tape, arguments.drafter, machines)
    return tell(arguments, {"benchmark": "trees", "shapes": lines}, [shapes_table(lines)])


def _telemetry(arguments: argparse.Namespace) -> int:
    from adaptspec.bench.collectors import Load
    from adaptspec.bench.telemetry_cost import TelemetrySettings, run_telemetry, telemetry_report
    from adaptspec.bench.workloads import read_workloads

    workloads = read_workloads(arguments.workloads, arguments.prompts)
    settings = TelemetrySettings(load=Load(arguments.requests, tokens=arguments.tokens))
    with progress("telemetry", settings.steps) as tick:
        result = run_telemetry(workloads, settings, tick)
    return tell(arguments, result, telemetry_report(result))


def _gpu(arguments: argparse.Namespace) -> int:
    """The exit status is 1 if something failed, or was not as it is to be."""
    from adaptspec.bench.gpu_kit import report, run_gpu_kit

    how = {"device": arguments.device, "tiny": arguments.tiny, "seconds": arguments.seconds}
    result = run_gpu_kit(arguments.part or (), arguments.out, **how)
    for one in result["parts"]:
        print(report(one))
    return 0 if result["good"] else 1


def _built(config: EngineConfig) -> Built:
    """The engine of a configuration, with its start shown on standard error."""
    from rich.console import Console

    from adaptspec.engine.assembly import build
    from adaptspec.start_status import StartStatus

    with StartStatus(Console(stderr=True), "starting") as status:
        return build(config, progress=status)


def _record(arguments: argparse.Namespace) -> int:
    from adaptspec.bench.record_tape import RecordSettings, record, summarise, write_costs
    from adaptspec.bench.workloads import read_workloads
    from adaptspec.simulation.tape_file import save_tape
    from adaptspec.tables import table_of

    config = engine_config(arguments)
    if arguments.out is None and arguments.costs_out is None:
        raise ConfigError("nothing to write: give --out for a tape, --costs-out for a cost table, or both")
    if arguments.out is None:
        write_costs(_built(config), config.limits.max_rows, arguments.costs_out)
        return 0
    heats = _temperatures(arguments.temperatures)
    settings = RecordSettings(arguments.tokens, heats, arguments.seed, history=not arguments.no_history)
    workloads = read_workloads(arguments.workloads, arguments.prompts)
    built = _built(config)
    with progress("record", 2 * len(settings.temperatures) * sum(map(len, workloads.values()))) as tick:
        tape = record(built, workloads, settings, tick)
    save_tape(tape, arguments.out)
    if arguments.costs_out is not None:
        write_costs(built, config.limits.max_rows, arguments.costs_out)
    title = "recorded; drafters: share of positions where they agree"
    result = {"tape": os.fspath(arguments.out), "recorded": summarise(tape)}
    return tell(arguments, result, [table_of(result["recorded"], title, keys=2)])


def _temperatures(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"--temperatures is {text!r}; give numbers with commas, such as 0,0.8") from None

"""`adaptspec bench ...`: measure this machine's speed and exactness, record tapes.

Nothing but results goes to standard output (`--json`: one object), progress to standard error.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from adaptspec.command_line import add_table_forms, given_values
from adaptspec.commands.arguments import (
    add_engine,
    add_models,
    add_policies,
    add_policy,
    engine_config,
    new_file,
    positive,
    progress,
    tell,
)
from adaptspec.control.language.library import find_policy, shipped_policies
from adaptspec.errors import ConfigError

if TYPE_CHECKING:
    from adaptspec.engine.build import Built
    from adaptspec.engine.engine_config import EngineConfig

YARDSTICK = "smollm2 if it was pulled, else the bundled pair"
_PROMPTS = "prompts per task, with --workloads (default: %(default)s)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `adaptspec bench`."""
    commands = parser.add_subparsers(metavar="BENCHMARK", required=True)
    exact = commands.add_parser("exactness", help="answers with speculation against plain decoding, bit for bit")
    exact.add_argument("--prompts", type=int, default=10, help=_PROMPTS)
    exact.add_argument(
        "--against",
        metavar="transformers|URL",
        help="compare plain greedy decoding with transformers, or with a server of OpenAI's API, such as "
        "http://127.0.0.1:8080, in place of speculation with plain decoding",
    )
    add_policies(exact, " in place of the default one")
    chats = _add_chats(commands)
    policies = commands.add_parser("policies", help="speed of policies side by side, on the same prompts")
    add_policy(
        policies,
        "policies",
        nargs="*",
        help="two or more; speeds are ratios to the first one's (default: off, fixed depths, and the default policy)",
    )
    policies.add_argument("--temperature", type=float, default=0.0, help="(default: %(default)s)")
    peers = commands.add_parser("peers", help="compare this server with others on the same prompts")
    peers.add_argument(
        "--peer",
        action="append",
        required=True,
        metavar="NAME=URL|COMMAND",
        help="a server of OpenAI's API, or a command with {port} that starts one; may be repeated (speeds are ratios "
        "to the first one's)",
    )
    peers.add_argument(
        "--clients", nargs="+", type=positive, default=[1, 4, 16], metavar="N", help="at once (default: 1 4 16)"
    )
    policies.add_argument("--batch", type=int, default=1, help="prompts at once (default: %(default)s)")
    for command, repeats, prompts in ((policies, 1, 6), (peers, 3, 4)):
        command.add_argument("--repeats", type=int, default=repeats, help="of every prompt (default: %(default)s)")
        command.add_argument("--prompts", type=int, default=prompts, help=_PROMPTS)
    decisions = commands.add_parser("decisions", help="what deciding and learning take per round")
    add_policies(decisions, " (default: all shipped)")
    decisions.add_argument("--tape", default="bundled", metavar="NAME|FILE", help="(default: %(default)s)")
    decisions.add_argument("--cost", default="cpu-2-cores", metavar="NAME|FILE", help="(default: %(default)s)")
    trees = commands.add_parser("trees", help="what the best fixed chains, combs and trees of a tape earn")
    trees.add_argument("--tape", default="bundled", metavar="NAME|FILE", help="(default: %(default)s)")
    machines = "may be repeated (default: all that ship for the tape's model)"
    trees.add_argument("--cost", action="append", metavar="NAME|FILE", help=machines)
    trees.add_argument("--drafter", default="draft-model", help="whose drafts (default: %(default)s)")
    telemetry = commands.add_parser("telemetry", help="what watching costs, also where collectors misbehave")
    telemetry.add_argument("--requests", type=int, default=400, help="per collector (default: %(default)s)")
    telemetry.add_argument("--prompts", type=int, default=4, help=_PROMPTS)
    for command, tokens in ((exact, 48), (chats, 32), (policies, 128), (peers, 128), (telemetry, 64)):
        command.add_argument("--tokens", type=int, default=tokens, help="tokens per answer (default: %(default)s)")
        _add_workloads(command)
    for command in (exact, chats, policies, peers):
        add_engine(command, YARDSTICK)
    runs = {
        exact: _exactness,
        chats: _chats,
        policies: _policies,
        peers: _peers,
        decisions: _decisions,
        trees: _trees,
        telemetry: _telemetry,
    }
    for command, run in runs.items():
        add_table_forms(command, json=True)
        command.set_defaults(run=run)
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
    add("--costs-out", type=new_file, help="run synthetic rounds for half a minute, and write what they cost")
    _add_workloads(parser)
    add("--prompts", type=int, default=16, help=_PROMPTS)
    add("--tokens", type=int, default=160, help="most tokens per answer (default: %(default)s)")
    add("--temperatures", default="0,0.8", help="comma-separated; 0 is greedy (default: %(default)s)")
    add("--seed", type=int, default=0, help="what the requests' seeds are made of")
    add("--no-history", action="store_true", help="drafters that learn from the requests before forget each of them")
    add_table_forms(parser, json=True)


def _add_workloads(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workloads", type=Path, help="folder of JSONL prompts (default: a built-in prompt a task)")


def _add_chats(commands: Any) -> argparse.ArgumentParser:
    """The arguments of `adaptspec bench chats`."""
    chats: argparse.ArgumentParser = commands.add_parser(
        "chats", help="chats of several turns: cached prompts, first tokens, and their texts"
    )
    chats.add_argument("--chats", type=positive, default=60, help="(default: %(default)s)")
    chats.add_argument("--prompts", type=int, default=10, help=_PROMPTS)
    add_policy(chats, "policy", nargs="?", help="that drafts (default: the server's default)")
    chats.add_argument(
        "--batch", nargs="+", type=positive, default=[1, 8], metavar="N", help="chats at once (default: 1 8)"
    )
    chats.add_argument("--repeats", type=positive, default=3, help="of each time (default: %(default)s)")
    return chats


def _exactness(arguments: argparse.Namespace) -> int:
    """The exit status is 1 if an answer differs; against another engine, if it does where no two tokens are close."""
    from adaptspec.bench.against import against_report, check_against, run_against
    from adaptspec.bench.exactness import (
        BATCHES,
        exactness_report,
        exactness_requests,
        exactness_settings,
        run_exactness,
    )
    from adaptspec.bench.workloads import read_workloads

    workloads = read_workloads(arguments.workloads, arguments.prompts)
    config = _config(arguments)
    if arguments.against is not None:
        check_against(arguments.against, config)
    built = _built(config)
    if arguments.against is not None:
        with progress("exactness", sum(map(len, workloads.values()))) as tick:
            result = run_against(arguments.against, built, config, workloads, arguments.tokens, tick=tick)
        tell(arguments, result, against_report(result))
        return 1 if result["unexplained"] else 0
    settings, requests = exactness_settings(built, config), exactness_requests(built, workloads, arguments.tokens)
    with progress("exactness", len(requests) + len(BATCHES) * len(settings)) as tick:
        result = run_exactness(built, config, settings, requests, tick)
    tell(arguments, result, exactness_report(result))
    return 1 if result["different"] else 0


def _chats(arguments: argparse.Namespace) -> int:
    """The exit status is 1 if the text of a chat differs."""
    from adaptspec.bench.chats import ChatSettings, chats_report, run_chats
    from adaptspec.bench.workloads import read_workloads

    workloads = read_workloads(arguments.workloads, arguments.prompts)
    settings = ChatSettings(arguments.chats, arguments.tokens, tuple(arguments.batch), arguments.repeats)
    config = _config(arguments)
    name = arguments.policy or config.default_policy
    config = replace(config, policies=(name,))
    built = _built(config)
    with progress("chats", 4 * len(settings.batches) + 2) as tick:
        result = run_chats(built, config, workloads, settings, tick)
    tell(arguments, result, chats_report(result))
    return 1 if any(row["different"] for row in result["arms"]) else 0


def _policies(arguments: argparse.Namespace) -> int:
    from adaptspec.bench.policies import PolicySettings, policies_report, policy_config, policy_groups, run_policies
    from adaptspec.bench.workloads import read_workloads

    workloads = read_workloads(arguments.workloads, arguments.prompts)
    settings = PolicySettings(arguments.tokens, arguments.batch, arguments.temperature, arguments.repeats)
    config = policy_config(_config(arguments), arguments.policies, settings.batch)
    built = _built(config)
    with progress("policies", len(policy_groups(workloads, settings.batch)) * settings.repeats) as tick:
        result = run_policies(built, config, workloads, settings, tick)
    return tell(arguments, result, policies_report(result))


def _peers(arguments: argparse.Namespace) -> int:
    from adaptspec import __version__
    from adaptspec.app import ServeConfig
    from adaptspec.bench.peers import PORT, Peer, PeerSettings, peer_groups, peers_report, run_peers
    from adaptspec.bench.workloads import read_workloads
    from adaptspec.commands.serve_config import shown_config
    from adaptspec.control.language.yaml_source import dump_yaml

    others = [Peer.parse(text) for text in arguments.peer]
    workloads = read_workloads(arguments.workloads, arguments.prompts)
    settings = PeerSettings(arguments.tokens, arguments.clients, arguments.repeats)
    config = _config(arguments)
    limits = replace(config.limits, max_rows=max(config.limits.max_rows, *settings.clients))
    steps = settings.repeats * sum(len(peer_groups(workloads, clients)) for clients in settings.clients)
    with TemporaryDirectory() as folder, progress("peers", steps) as tick:
        file = Path(folder, "serve.yaml")
        shown = shown_config(ServeConfig(replace(config, limits=limits)))
        file.write_text(dump_yaml(shown), encoding="utf-8")
        own = []
        for policy in ("off", config.default_policy):
            command = [sys.executable, "-m", "adaptspec", "serve", "--config", str(file), "--policy", policy]
            own.append(Peer(f"adaptspec {policy}", command=[*command, "--port", PORT]))
        result = run_peers([*others, *own], workloads, settings, tick, partial(tick, advance=0))
        result["adaptspec"] = {"version": __version__, "config": shown}
    return tell(arguments, result, peers_report(result))


def _decisions(arguments: argparse.Namespace) -> int:
    from adaptspec.bench.decisions import DecisionSettings, run_decisions
    from adaptspec.control.language.loader import load_policy_spec
    from adaptspec.simulation.machine import load_machine
    from adaptspec.simulation.tape_file import find_tape, load_tape
    from adaptspec.tables import table_of

    names = arguments.policy or [path.stem for path in shipped_policies()]
    policies = [load_policy_spec(find_policy(name)) for name in names]
    tape, costs, settings = load_tape(find_tape(arguments.tape)), load_machine(arguments.cost), DecisionSettings()
    with progress("decisions", len(policies) * len(settings.batches)) as tick:
        result = run_decisions(policies, tape, costs, settings, tick)
    title = "decide + learn per round; rounds replayed on " + costs.label
    return tell(arguments, result, [table_of(result["policies"], title)])


def _trees(arguments: argparse.Namespace) -> int:
    from adaptspec.analysis.static_trees import compare_shapes, shapes_table
    from adaptspec.commands.run_simulation import machines_for
    from adaptspec.simulation.machine import load_machine
    from adaptspec.simulation.tape_file import find_tape, load_tape

    tape = load_tape(find_tape(arguments.tape))
    machines = [load_machine(name) for name in arguments.cost or ()] or machines_for(tape)
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


def _config(arguments: argparse.Namespace) -> EngineConfig:
    """What `add_engine` was given; without --model, SmolLM2 if it was pulled, else the bundled pair."""
    from adaptspec.models.source import is_fetched

    config = engine_config(arguments)
    smollm2 = "model" not in given_values(arguments) and is_fetched("smollm2")
    return replace(config, model="smollm2") if smollm2 else config


def _built(config: EngineConfig) -> Built:
    """The engine of a configuration, with its start shown on standard error."""
    from rich.console import Console

    from adaptspec.engine.build import build
    from adaptspec.start_status import StartStatus

    with StartStatus(Console(stderr=True), "starting") as status:
        return build(config, progress=status)


def _record(arguments: argparse.Namespace) -> int:
    from adaptspec.bench.record_tape import RecordSettings, record, summarise, write_costs
    from adaptspec.bench.setup import described, title_of
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
    result = {"tape": os.fspath(arguments.out), "setup": described(built, config), "recorded": summarise(tape)}
    title = f"recorded; drafters: share of positions where they agree ({title_of(result['setup'])})"
    return tell(arguments, result, [table_of(result["recorded"], title, keys=2)])


def _temperatures(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"--temperatures is {text!r}; give numbers with commas, such as 0,0.8") from None

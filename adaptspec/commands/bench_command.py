"""`adaptspec bench ...`: measure this machine's speed and exactness, record tapes.

Nothing but results goes to standard output (`--json`: one object), progress to standard error.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from adaptspec.command_line import variable
from adaptspec.commands.arguments import (
    add_engine,
    add_models,
    add_policies,
    add_policy,
    engine_config,
    new_file,
    positive,
)
from adaptspec.commands.output import add_json, print_result, progress
from adaptspec.errors import ConfigError

if TYPE_CHECKING:
    from adaptspec.config import EngineConfig
    from adaptspec.engine.build import Built

YARDSTICK = "smollm2 if it was pulled, else the bundled pair"
Run = Callable[[argparse.Namespace], int]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `adaptspec bench`."""
    commands = parser.add_subparsers(metavar="BENCHMARK", required=True)
    _add_speed(commands)
    _add_exactness(commands)
    _add_chats(commands)
    _add_peers(commands)
    _add_record(commands)


def _add(commands: Any, name: str, run: Run, help_text: str, *, prompts: int, tokens: int) -> argparse.ArgumentParser:
    """A benchmark that answers the prompts of workloads."""
    parser: argparse.ArgumentParser = commands.add_parser(name, help=help_text)
    add = parser.add_argument
    add("--workloads", type=Path, help="folder of JSONL prompts (default: a built-in prompt a task)")
    add("--prompts", type=positive, default=prompts, help="prompts per task, with --workloads (default: %(default)s)")
    add("--tokens", type=positive, default=tokens, help="most tokens per answer (default: %(default)s)")
    add_json(parser)
    parser.set_defaults(run=run)
    return parser


def _add_speed(commands: Any) -> None:
    what = "speed of policies next to plain decoding, on the same prompts"
    parser = _add(commands, "speed", _speed, what, prompts=6, tokens=128)
    add = parser.add_argument
    add_policies(parser, " (default: the server's default)")
    add("--depths", nargs="*", type=positive, default=[1, 3, 7], metavar="N", help="fixed depths (default: 1 3 7)")
    add("--transformers", action="store_true", help="compare plain decoding by transformers, too")
    add("--temperature", type=float, default=0.0, help="(default: %(default)s)")
    add("--batch", type=positive, default=1, help="prompts at once (default: %(default)s)")
    add("--repeats", type=positive, default=1, help="of every prompt (default: %(default)s)")
    add_engine(parser, YARDSTICK)


def _add_exactness(commands: Any) -> None:
    what = "answers with speculation against plain decoding, bit for bit"
    parser = _add(commands, "exactness", _exactness, what, prompts=10, tokens=48)
    parser.add_argument(
        "--against",
        metavar="transformers|URL",
        help="compare plain greedy decoding with transformers, or with a server of OpenAI's API, such as "
        "http://127.0.0.1:8080, in place of speculation with plain decoding",
    )
    add_policies(parser, " in place of the default one")
    add_engine(parser, YARDSTICK)


def _add_chats(commands: Any) -> None:
    what = "chats of several turns: cached prompts, first tokens, and their texts"
    parser = _add(commands, "chats", _chats, what, prompts=10, tokens=32)
    add = parser.add_argument
    add_policy(parser, "policy", nargs="?", help="that drafts (default: the server's default)")
    add("--chats", type=positive, default=60, help="(default: %(default)s)")
    add("--batch", nargs="+", type=positive, default=[1, 8], metavar="N", help="chats at once (default: 1 8)")
    add("--repeats", type=positive, default=3, help="of each time (default: %(default)s)")
    add_engine(parser, YARDSTICK)


def _add_peers(commands: Any) -> None:
    what = "compare this server with others on the same prompts"
    parser = _add(commands, "peers", _peers, what, prompts=4, tokens=128)
    add = parser.add_argument
    add(
        "--peer",
        action="append",
        required=True,
        metavar="NAME=URL|COMMAND",
        help="a server of OpenAI's API, or a command with {port} that starts one; may be repeated (speeds are ratios "
        "to the first one's)",
    )
    add("--clients", nargs="+", type=positive, default=[1, 4, 16], metavar="N", help="at once (default: 1 4 16)")
    add("--repeats", type=positive, default=3, help="of every prompt (default: %(default)s)")
    add_engine(parser, YARDSTICK)


def _add_record(commands: Any) -> None:
    parser = _add(commands, "record", _record, "record tapes for `adaptspec policy simulate`", prompts=16, tokens=160)
    parser.description = (
        "Record tapes: answer the prompts by plain decoding and note, for every position of every answer, what each "
        "drafter would have proposed. `adaptspec policy simulate` replays them."
    )
    add = parser.add_argument
    add("--out", type=new_file, help="file to write, such as tape.npz")
    add("--costs-out", type=new_file, help="run synthetic rounds for half a minute, and write what they cost")
    add("--temperatures", default="0,0.8", help="comma-separated; 0 is greedy (default: %(default)s)")
    add("--seed", type=int, default=0, help="what the requests' seeds are made of")
    add("--no-history", action="store_true", help="drafters that learn from the requests before forget each of them")
    add_models(parser)


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
    config = replace(_config(arguments), policy=tuple(arguments.policy))
    if arguments.against is not None:
        check_against(arguments.against, config)
    built = _built(config)
    if arguments.against is not None:
        with progress("exactness", sum(map(len, workloads.values()))) as tick:
            result = run_against(arguments.against, built, config, workloads, arguments.tokens, tick=tick)
        print_result(arguments, result, against_report(result))
        return 1 if result["unexplained"] else 0
    settings, requests = exactness_settings(built, config), exactness_requests(built, workloads, arguments.tokens)
    with progress("exactness", len(requests) + len(BATCHES) * len(settings)) as tick:
        result = run_exactness(built, config, settings, requests, tick)
    print_result(arguments, result, exactness_report(result))
    return 1 if result["different"] else 0


def _chats(arguments: argparse.Namespace) -> int:
    """The exit status is 1 if the text of a chat differs."""
    from adaptspec.bench.chats import ChatSettings, chats_report, check_prompts, run_chats
    from adaptspec.bench.workloads import read_workloads

    workloads = read_workloads(arguments.workloads, arguments.prompts)
    check_prompts(workloads)
    settings = ChatSettings(arguments.chats, arguments.tokens, tuple(arguments.batch), arguments.repeats)
    config = _config(arguments)
    name = arguments.policy or config.default_policy
    config = replace(config, policy=(name,))
    built = _built(config)
    with progress("chats", 4 * len(settings.batches) + 2) as tick:
        result = run_chats(built, config, workloads, settings, tick)
    print_result(arguments, result, chats_report(result))
    return 1 if any(row["different"] for row in result["arms"]) else 0


def _speed(arguments: argparse.Namespace) -> int:
    from adaptspec.bench.core import groups_of
    from adaptspec.bench.speed import SpeedSettings, compare_speed, speed_config, speed_report
    from adaptspec.bench.workloads import read_workloads

    workloads = read_workloads(arguments.workloads, arguments.prompts)
    settings = SpeedSettings(
        arguments.tokens,
        arguments.batch,
        arguments.temperature,
        arguments.repeats,
        arguments.depths,
        arguments.transformers,
    )
    config = speed_config(replace(_config(arguments), policy=tuple(arguments.policy)), settings)
    built = _built(config)
    with progress("speed", len(groups_of(workloads, settings.batch)) * settings.repeats) as tick:
        result = compare_speed(built, config, workloads, settings, tick)
    return print_result(arguments, result, speed_report(result))


def _peers(arguments: argparse.Namespace) -> int:
    from adaptspec import __version__
    from adaptspec.bench.peers import PORT, Peer, PeerSettings, peer_groups, peers_report, run_peers
    from adaptspec.bench.workloads import read_workloads
    from adaptspec.config import ServeConfig
    from adaptspec.control.language.yaml_source import dump_yaml
    from adaptspec.settings import dump

    others = [Peer.parse(text) for text in arguments.peer]
    workloads = read_workloads(arguments.workloads, arguments.prompts)
    settings = PeerSettings(arguments.tokens, arguments.clients, arguments.repeats)
    config = _config(arguments)
    steps = settings.repeats * sum(len(peer_groups(workloads, clients)) for clients in settings.clients)
    with TemporaryDirectory() as folder, progress("peers", steps) as tick:
        file = Path(folder, "serve.yaml")
        served = ServeConfig(**{**vars(config), "max_num_seqs": max(config.max_num_seqs, *settings.clients)})
        shown = dump(served)
        file.write_text(dump_yaml(shown), encoding="utf-8")
        own = []
        for policy in ("off", config.default_policy):
            command = [sys.executable, "-m", "adaptspec", "serve", "--config", str(file), "--policy", policy]
            own.append(Peer(f"adaptspec {policy}", command=[*command, "--port", PORT]))
        result = run_peers([*others, *own], workloads, settings, tick, partial(tick, advance=0))
        result["adaptspec"] = {"version": __version__, "config": shown}
    return print_result(arguments, result, peers_report(result))


def _config(arguments: argparse.Namespace) -> EngineConfig:
    """What `add_engine` was given; without --model, SmolLM2 if it was pulled, else the bundled pair."""
    from adaptspec.models.source import is_fetched

    config = engine_config(arguments)
    chosen = arguments.settings["model"] is not None or os.environ.get(variable("--model"))
    return config if chosen or not is_fetched("smollm2") else replace(config, model="smollm2")


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
        write_costs(_built(config), config.max_num_seqs, arguments.costs_out)
        return 0
    temperatures = _temperatures(arguments.temperatures)
    settings = RecordSettings(arguments.tokens, temperatures, arguments.seed, history=not arguments.no_history)
    workloads = read_workloads(arguments.workloads, arguments.prompts)
    built = _built(config)
    with progress("record", 2 * len(settings.temperatures) * sum(map(len, workloads.values()))) as tick:
        tape = record(built, workloads, settings, tick)
    save_tape(tape, arguments.out)
    if arguments.costs_out is not None:
        write_costs(built, config.max_num_seqs, arguments.costs_out)
    result = {"tape": os.fspath(arguments.out), "setup": described(built, config), "recorded": summarise(tape)}
    title = f"recorded; drafters: share of positions where they agree ({title_of(result['setup'])})"
    return print_result(arguments, result, [table_of(result["recorded"], title)])


def _temperatures(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"--temperatures is {text!r}; give numbers with commas, such as 0,0.8") from None

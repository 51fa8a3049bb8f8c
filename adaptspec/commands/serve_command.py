"""`adaptspec serve`: the arguments of the HTTP server, and its start; `serve_config` settles what they mean."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from adaptspec.command_line import Lines
from adaptspec.commands.arguments import add_models, positive, seconds, share
from adaptspec.server.api.reasoning_formats import AUTO, FormatName

if TYPE_CHECKING:
    from rich.console import Console

    from adaptspec.start_status import StartStatus


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `adaptspec serve`."""
    parser.description = (
        "Serve. Every flag can be given as the environment variable in brackets (lists with commas), too, and --config "
        "reads what --show-config prints: flags win over variables, variables over the file."
    )
    group = parser.add_argument_group("configuration")
    group.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="a configuration, as --show-config prints it; its policy files are found from its folder",
    )
    group.add_argument("--show-config", action="store_true", help="print the whole configuration and exit")
    add_models(parser)
    _add_server(parser.add_argument_group("server"))
    _add_telemetry(parser.add_argument_group("traces and metrics (OTEL_* variables work, too)"))
    _add_security(parser.add_argument_group("security and limits"))
    parser.set_defaults(run=_serve)


def _add_server(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    add("--port", type=int, default=8000, help="port to listen on (default: %(default)s)")
    add(
        "--served-model-name",
        nargs="+",
        metavar="NAME",
        help="the names clients use; answers have the first, and * allows any (default: the model's own)",
    )
    add(
        "--max-waiting", type=positive, default=1024, metavar="N", help="requests that may queue (default: %(default)s)"
    )
    add(
        "--drain-seconds",
        type=seconds,
        default=30.0,
        metavar="S",
        help="grace for running requests at shutdown (default: %(default)s)",
    )
    add("--state-dir", type=Path, metavar="DIR", help="keep what policies learn here, across restarts")
    add(
        "--keep-history",
        action="store_true",
        help="keep what was served there, too, for the counts drafter (a policy's history): as counts of tokens, from "
        "which texts can be pieced together",
    )
    add("--journal", type=Path, metavar="FILE", help="write every round down, as JSON lines")
    add(
        "--journal-megabytes",
        type=positive,
        default=64,
        metavar="MB",
        help="a fuller journal goes on in a new file; FILE.1 is then the one before (default: %(default)s)",
    )
    add(
        "--journal-files",
        type=positive,
        default=4,
        metavar="N",
        help="files kept, FILE included (default: %(default)s)",
    )
    add(
        "--watch-policies",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="reload a policy when its file changes (default: yes; SIGHUP always does)",
    )
    add(
        "--reasoning-format",
        choices=get_args(FormatName),
        default=AUTO,
        help="how the model marks its reasoning, which chats return as reasoning_content and responses as an item of "
        "its own; auto: as its chat template does, if any; think: <think>...</think>; none: it stays in the answer "
        "(default: %(default)s)",
    )
    add(
        "--metrics-compat",
        choices=["vllm"],
        help="serve what boards and autoscalers read under vLLM's metric names, too (in a configuration file: "
        "compat_vllm: true)",
    )


def _add_telemetry(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--otlp-endpoint",
        metavar="URL",
        help="collector to send traces to, such as http://localhost:4318 (default: none)",
    )
    add(
        "--trace-level",
        choices=["off", "request", "phase", "round"],
        default="phase",
        help="how much a trace says (default: %(default)s)",
    )
    add("--trace-slow-seconds", type=seconds, metavar="S", help="requests that take longer get a span per round")
    add(
        "--trace-round-share",
        type=share,
        default=1.0,
        metavar="P",
        help="share of traces that level round is for (default: %(default)s)",
    )
    add("--trace-content", action="store_true", help="send prompts and answers as well")
    add("--otlp-metrics", action="store_true", help="send metrics to the collector, too")


def _add_security(group: argparse._ArgumentGroup) -> None:
    keys = group.add_mutually_exclusive_group()
    keys.add_argument(
        "--api-key",
        action=Lines,
        default=[],
        metavar="KEY",
        help="serve only who brings this key; may be repeated (default: everybody). Whoever may list this machine's "
        "processes reads what is given as a flag: better use the variable (a key in each line), or --api-key-file",
    )
    keys.add_argument(
        "--api-key-file",
        type=Path,
        metavar="FILE",
        help="the same with keys in a file, one per line; KEY # NAME gives one a name that policies can go by, and "
        "lines that begin with # are comments",
    )
    add = group.add_argument
    add(
        "--admin-key-file",
        type=Path,
        metavar="FILE",
        help="a file with the key for /admin routes; lines that begin with # are comments (default: the environment's "
        "ADAPTSPEC_ADMIN_KEY; without, no such routes)",
    )
    add("--insecure", action="store_true", help="listen on an address that others reach, without any key")
    add(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="without keys: a name by which this server may be called, beside localhost and addresses; may be repeated",
    )
    add(
        "--allow-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="let web pages of this origin, such as http://localhost:3000, call the server from a browser; * is any; "
        "may be repeated (default: none)",
    )
    add(
        "--pad-stream",
        action="store_true",
        help="stream in packets of one size and pace, which do not show what speculation did",
    )
    add(
        "--limit",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="set one of the limits that --show-config lists; may be repeated",
    )


def _serve(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from adaptspec.start_status import StartStatus

    console = Console(stderr=True)
    with StartStatus(console, "loading libraries") as status:
        return _run_server(arguments, console, status)


def _run_server(arguments: argparse.Namespace, console: Console, status: StartStatus) -> int:
    from adaptspec.app import serve
    from adaptspec.commands.serve_config import serve_config, shown_config
    from adaptspec.control.language.yaml_source import dump_yaml

    config = serve_config(arguments)
    if arguments.show_config:
        sys.stdout.write(dump_yaml(shown_config(config), sort_keys=False, allow_unicode=True))
        return 0
    if arguments.given.get("api_key", "").startswith("--"):
        sys.stderr.write(
            "adaptspec: whoever may list this machine's processes can read --api-key; better use ADAPTSPEC_API_KEY or "
            "--api-key-file\n"
        )
    asyncio.run(serve(config, console, status))
    return 0

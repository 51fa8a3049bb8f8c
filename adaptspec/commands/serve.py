"""`adaptspec serve`: the HTTP server."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from adaptspec.app import ServeConfig, serve
from adaptspec.commands.arguments import add_models, engine_config
from adaptspec.commands.values import positive, seconds, share
from adaptspec.errors import ConfigError
from adaptspec.files import read_text
from adaptspec.server.limits import ServerLimits
from adaptspec.telemetry.trace_settings import PushSettings, TraceLevel, TraceSettings

ADMIN_KEY = "ADAPTSPEC_ADMIN_KEY"
API_KEY = "ADAPTSPEC_API_KEY"
_MOST_BYTES = 2**20  # of a file of keys


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `adaptspec serve`."""
    add_models(parser)
    group = parser.add_argument_group("server")
    group.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    group.add_argument("--port", type=int, default=8000, help="port to listen on (default: %(default)s)")
    group.add_argument("--served-model-name", help="the name clients use (default: the model's own)")
    group.add_argument(
        "--max-waiting", type=positive, default=1024, help="requests that may queue (default: %(default)s)"
    )
    group.add_argument("--drain-seconds", type=seconds, default=30.0, help="grace for running requests at shutdown")
    group.add_argument("--state-dir", type=Path, help="keep what policies learn here, across restarts")
    group.add_argument("--journal", type=Path, metavar="FILE", help="write every round down, as JSON lines")
    group.add_argument(
        "--journal-megabytes",
        type=positive,
        default=64,
        metavar="MB",
        help="a fuller journal goes on in a new file; FILE.1 is then the one before (default: %(default)s)",
    )
    group.add_argument(
        "--journal-files",
        type=positive,
        default=4,
        metavar="N",
        help="files kept, FILE included (default: %(default)s)",
    )
    group.add_argument(
        "--admin-key-file",
        type=Path,
        metavar="FILE",
        help=f"the key for /admin routes is this file's text (default: the environment's {ADMIN_KEY}; without, no such "
        "routes)",
    )
    group.add_argument(
        "--watch-policies",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="reload a policy when its file changes (default: yes; SIGHUP always does)",
    )
    group.add_argument("--metrics-compat", choices=["vllm"], help="serve vLLM's metric names as well")
    _add_telemetry(parser.add_argument_group("traces and metrics (OTEL_* variables work, too)"))
    _add_security(parser.add_argument_group("security and limits"))
    parser.set_defaults(run=_serve)


def _add_telemetry(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--otlp-endpoint",
        metavar="URL",
        help="collector to send traces to, such as http://localhost:4318 (default: none)",
    )
    group.add_argument(
        "--trace-level",
        choices=[level.value for level in TraceLevel],
        default=TraceLevel.PHASE.value,
        help="how much a trace says (default: %(default)s)",
    )
    group.add_argument(
        "--trace-slow-seconds", type=seconds, metavar="S", help="requests that take longer get a span per round"
    )
    group.add_argument(
        "--trace-round-share", type=share, default=1.0, metavar="P", help="share of traces that level round is for"
    )
    group.add_argument("--trace-content", action="store_true", help="send prompts and answers as well")
    group.add_argument("--otlp-metrics", action="store_true", help="send metrics to the collector, too")


def _add_security(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--api-key-file",
        type=Path,
        metavar="FILE",
        help="serve only who brings one of the keys in this file, one per line "
        f"(default: those in the environment's {API_KEY}; without, everybody)",
    )
    group.add_argument(
        "--insecure", action="store_true", help="listen on an address that others reach, without any key"
    )
    group.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="without keys: a name by which this server may be called, beside localhost and addresses; may be repeated",
    )
    group.add_argument(
        "--pad-stream",
        action="store_true",
        help="stream in packets of one size and pace, which do not show what speculation did",
    )
    group.add_argument(
        "--limit",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="set one of the limits that --show-config lists; may be repeated",
    )
    group.add_argument("--show-config", action="store_true", help="print the whole configuration and exit")


def _serve(arguments: argparse.Namespace) -> int:
    config = _config(arguments)
    if arguments.show_config:
        yaml.safe_dump(_shown(config), sys.stdout, sort_keys=False)
        return 0
    asyncio.run(serve(config, Console(stderr=True)))
    return 0


def _config(arguments: argparse.Namespace) -> ServeConfig:
    return ServeConfig(
        engine=engine_config(arguments),
        host=arguments.host,
        port=arguments.port,
        served_model_name=arguments.served_model_name,
        max_waiting=arguments.max_waiting,
        drain_seconds=arguments.drain_seconds,
        compat_vllm=arguments.metrics_compat == "vllm",
        state_dir=arguments.state_dir,
        journal=arguments.journal,
        journal_bytes=arguments.journal_megabytes * 2**20,
        journal_files=arguments.journal_files,
        admin_key=_admin_key(arguments.admin_key_file),
        watch_policies=arguments.watch_policies,
        traces=TraceSettings(
            TraceLevel(arguments.trace_level),
            arguments.otlp_endpoint,
            arguments.trace_slow_seconds,
            arguments.trace_round_share,
            arguments.trace_content,
        ),
        push=PushSettings(arguments.otlp_metrics, arguments.otlp_endpoint),
        api_keys=_api_keys(arguments.api_key_file),
        insecure=arguments.insecure,
        allowed_hosts=tuple(arguments.allow_host),
        limits=ServerLimits().changed(arguments.limit),
        pad_stream=arguments.pad_stream,
    )


def _shown(config: ServeConfig) -> dict[str, Any]:
    """What a configuration says, but for its secrets: of them, how many there are."""
    values: dict[str, Any] = {
        name: str(value) if isinstance(value, Path) else value for name, value in asdict(config).items()
    }
    values["engine"]["policies"] = list(config.engine.policy_names)
    values["traces"]["level"] = config.traces.level.value
    for part in ("traces", "push"):
        values[part]["endpoint"] = _without_login(values[part]["endpoint"])
    values["allowed_hosts"] = list(config.allowed_hosts)
    values["api_keys"] = len(config.api_keys)
    values["admin_key"] = config.admin_key is not None
    return values


def _without_login(url: str | None) -> str | None:
    """An address without the name and password that it may hold."""
    if url is None:
        return None
    scheme, separator, rest = url.rpartition("://")
    place, slash, path = rest.partition("/")
    return scheme + separator + place.rpartition("@")[2] + slash + path


def _api_keys(file: Path | None) -> tuple[str, ...]:
    """The API keys; none where everybody may use the server."""
    text = os.environ.get(API_KEY, "") if file is None else _read(file, "--api-key-file")
    return tuple(dict.fromkeys(line.strip() for line in text.splitlines() if line.strip()))


def _admin_key(file: Path | None) -> str | None:
    """The admin key: a file keeps it out of the list of processes; None where nobody may change anything."""
    if file is None:
        return os.environ.get(ADMIN_KEY) or None
    return _read(file, "--admin-key-file")


def _read(file: Path, option: str) -> str:
    """What a file of keys holds."""
    try:
        text = read_text(file, _MOST_BYTES).strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"  # never what is in it
        raise ConfigError(f"{option} {file}: cannot be read ({reason}); give a file that holds the key") from error
    if not text:
        raise ConfigError(f"{option} {file}: it is empty; write the key into it")
    return text

"""What `adaptspec serve` does: settles its configuration, and shows it or starts the server."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from adaptspec.app import ServeConfig, serve
from adaptspec.command_line import given_values
from adaptspec.commands.config_file import read_config, shown_config
from adaptspec.commands.engine_settings import engine_config
from adaptspec.errors import ConfigError
from adaptspec.files import read_text
from adaptspec.telemetry.otlp_export import PushSettings, TraceLevel, TraceSettings

ADMIN_KEY = "ADAPTSPEC_ADMIN_KEY"
_MOST_BYTES = 2**20  # of a file of keys

# Settings that are called on the command line as they are in the configuration, by the part they belong to.
_SAME = (
    *("host", "port", "served_model_name", "max_waiting", "drain_seconds", "state_dir", "journal", "journal_files"),
    *("watch_policies", "insecure", "pad_stream"),
)


def run_serve(arguments: argparse.Namespace) -> int:
    """Serve until a signal ends it; the exit status is 0."""
    config = serve_config(arguments)
    if arguments.show_config:
        yaml.safe_dump(shown_config(config), sys.stdout, sort_keys=False, allow_unicode=True)
        return 0
    if arguments.given.get("api_key", "").startswith("--"):
        sys.stderr.write(
            "adaptspec: whoever may list this machine's processes can read --api-key; better use ADAPTSPEC_API_KEY or "
            "--api-key-file\n"
        )
    asyncio.run(serve(config, Console(stderr=True)))
    return 0


def serve_config(arguments: argparse.Namespace) -> ServeConfig:
    """The file of `--config`, or the defaults, and over it what flags and variables say.

    Raises:
        ConfigError: a file or a limit cannot be used, or keys that the file speaks of are missing.
    """
    file = None if arguments.config is None else read_config(arguments.config)
    base, given = ServeConfig() if file is None else file.config, given_values(arguments)
    config = replace(
        base,
        engine=engine_config(arguments, base.engine),
        admin_key=_admin_key(arguments.admin_key_file),
        api_keys=_api_keys(given),
        traces=_traces(base.traces, given),
        push=_push(base.push, given),
        limits=base.limits.changed(given.get("limit", ())),
        **{name: given[name] for name in _SAME if name in given},
    )
    if "metrics_compat" in given:
        config = replace(config, compat_vllm=given["metrics_compat"] == "vllm")
    if "journal_megabytes" in given:
        config = replace(config, journal_bytes=given["journal_megabytes"] * 2**20)
    if "allow_host" in given:
        config = replace(config, allowed_hosts=tuple(given["allow_host"]))
    if file is not None:
        file.check_keys(config)
    return config


def _traces(base: TraceSettings, given: Mapping[str, Any]) -> TraceSettings:
    names = {
        "otlp_endpoint": "endpoint",
        "trace_slow_seconds": "slow_seconds",
        "trace_round_share": "round_share",
        "trace_content": "content",
    }
    traces = replace(base, **{name: given[flag] for flag, name in names.items() if flag in given})
    return replace(traces, level=TraceLevel(given["trace_level"])) if "trace_level" in given else traces


def _push(base: PushSettings, given: Mapping[str, Any]) -> PushSettings:
    names = {"otlp_metrics": "wanted", "otlp_endpoint": "endpoint"}
    return replace(base, **{name: given[flag] for flag, name in names.items() if flag in given})


def _api_keys(given: Mapping[str, Any]) -> tuple[str, ...]:
    """The API keys; none where everybody may use the server."""
    file = given.get("api_key_file")
    lines = given.get("api_key", []) if file is None else _read(file, "--api-key-file").splitlines()
    keys = tuple(dict.fromkeys(line.strip() for line in lines if line.strip()))
    if not keys and ("api_key" in given or file is not None):
        raise ConfigError("--api-key is empty; give a key, or leave it out to serve everybody")
    return keys


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

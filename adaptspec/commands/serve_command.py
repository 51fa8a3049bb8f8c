"""`adaptspec serve`: reads the settings of the HTTP server, and starts it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from adaptspec.commands.arguments import add_models
from adaptspec.config import ServeConfig
from adaptspec.errors import ConfigError
from adaptspec.settings import dump, load

if TYPE_CHECKING:
    from rich.console import Console

    from adaptspec.start_status import StartStatus

_MAX_KEY_BYTES = 2**20  # of a file of keys


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `adaptspec serve`."""
    parser.usage = "adaptspec serve [--model MODEL] [--policy NAME|FILE] [--config FILE] [FLAG ...]"
    parser.description = (
        "Serve a model with OpenAI's API. Each setting is a flag, a variable (--max-num-seqs: ADAPTSPEC_MAX_NUM_SEQS, "
        "lists with commas) and a key of --config (max_num_seqs); flags win over variables, variables over the file."
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="a YAML file of settings, as --show-config prints")
    parser.add_argument("--show-config", action="store_true", help="print all settings and exit")
    add_models(parser, ServeConfig)
    parser.set_defaults(run=_serve)


def serve_config(arguments: argparse.Namespace) -> ServeConfig:
    """All settings of a server, with the keys of its files. Raises ConfigError."""
    variable = os.environ.get("ADAPTSPEC_CONFIG")
    file = arguments.config or (Path(variable) if variable else None)
    return _with_keys(load(ServeConfig, arguments.settings, file))


def _serve(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from adaptspec.start_status import StartStatus

    console = Console(stderr=True)
    with StartStatus(console, "loading libraries") as status:
        return _run_server(arguments, console, status)


def _run_server(arguments: argparse.Namespace, console: Console, status: StartStatus) -> int:
    config = serve_config(arguments)
    if arguments.show_config:
        from adaptspec.control.language.yaml_source import dump_yaml

        sys.stdout.write(dump_yaml(dump(config), sort_keys=False, allow_unicode=True))
        return 0
    given = arguments.settings["api_key"]
    if given is not None:
        sys.stderr.write(
            f"adaptspec: other users of this machine can see {given.where}; prefer ADAPTSPEC_API_KEY or "
            "--api-key-file\n"
        )
    import asyncio

    from adaptspec.app import serve

    asyncio.run(serve(config, console, status))
    return 0


def _with_keys(config: ServeConfig) -> ServeConfig:
    """The configuration with the keys that are in its files. Raises ConfigError: a file cannot be used, or has none."""
    api, admin = _keys(config.api_key), config.admin_key
    if config.api_key and not api:
        raise ConfigError("--api-key or its variable holds comments only; give a key, or leave it out to serve all")
    if config.api_key_file is not None:
        api = _keys_in(config.api_key_file, "--api-key-file")
    if config.admin_key_file is not None:
        from adaptspec.server.auth import named_key

        first, *more = _keys_in(config.admin_key_file, "--admin-key-file")
        if more:
            raise ConfigError(
                f"--admin-key-file {config.admin_key_file}: it holds {1 + len(more)} keys; write one into it"
            )
        admin = named_key(first)[0]
    return replace(config, api_key=api, admin_key=admin)


def _keys(lines: Iterable[str]) -> tuple[str, ...]:
    """Lines with a key, each once; blank lines and comments have none."""
    from adaptspec.server.auth import named_key

    return tuple(dict.fromkeys(line.strip() for line in lines if named_key(line)[0]))


def _keys_in(file: Path, option: str) -> tuple[str, ...]:
    """The lines of a file that hold keys, of which there is at least one."""
    from adaptspec.files import read_text

    try:
        text = read_text(file, _MAX_KEY_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"  # never what is in it
        raise ConfigError(f"{option} {file}: cannot be read ({reason}); give a file that holds the key") from error
    keys = _keys(text.splitlines())
    if not keys:
        raise ConfigError(f"{option} {file}: it holds no key; write the key into it, on a line without # before it")
    return keys

"""Arguments that several commands share. Loads nothing that takes time.

Each command has a module here, NAME_command, with its arguments and its functions. Their imports are in the functions
where they take time, so that help and completion in a shell need none of it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge

from adaptspec.config import EngineConfig
from adaptspec.control.language.library import shipped_policies
from adaptspec.settings import add_flags, argument_type, load

POLICY = "a shipped policy or a YAML file"
_FIRST = ", the first is the default (default: goodput)"
# What a command sets by itself that loads one model for one purpose.
_SERVING = ("policy", "max_num_seqs", "prefix_cache", "prefill_seconds", "prefill_tokens", "cache_tokens")

positive = argument_type(Annotated[int, Ge(1)])
natural = argument_type(Annotated[int, Ge(0)])
non_negative = argument_type(Annotated[float, Ge(0.0)])


def add_models(parser: argparse.ArgumentParser, config: type[EngineConfig] = EngineConfig) -> None:
    """All flags of an engine, or of a server."""
    add_flags(parser, config)["policy"].completer = _known_policies  # type: ignore[attr-defined]  # of argcomplete


def add_engine(parser: argparse.ArgumentParser, default_model: str = "bundled", leave_out: Iterable[str] = ()) -> None:
    """The flags of an engine that runs one workload; `default_model` is the default of --model in the help."""
    model = add_flags(parser, EngineConfig, (*_SERVING, *leave_out))["model"]
    model.help = str(model.help).replace("default: bundled", f"default: {default_model}")


def engine_config(arguments: argparse.Namespace) -> EngineConfig:
    """What the flags of `add_models` or `add_engine` and their variables say. Raises ConfigError."""
    return load(EngineConfig, arguments.settings)


def add_policies(parser: argparse._ActionsContainer, more: str = _FIRST) -> None:
    """`--policy` for any number of them; `more` ends its help."""
    add_policy(parser, "--policy", action="append", default=[], help=f"{POLICY}; may be given again{more}")


def add_policy(parser: argparse._ActionsContainer, *names: str, **more: Any) -> None:
    """An argument that names policies; shells complete it with those that ship, and with YAML files."""
    action = parser.add_argument(*names, **{"metavar": "NAME|FILE", "help": POLICY, **more})
    action.completer = _known_policies  # type: ignore[attr-defined]  # of argcomplete


def _known_policies(prefix: str, **more: Any) -> list[str]:
    from argcomplete.completers import FilesCompleter

    files = FilesCompleter(("yaml", "yml"))(prefix, **more)
    return [path.stem for path in shipped_policies()] + list(files)


def new_file(text: str) -> Path:
    """A file to write at the end of long work, in a folder that is there: better known before it."""
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{path}: name a file, in a folder that is there")
    return path

"""Arguments that several commands share. Loads nothing that takes time: `engine_settings` makes engines of them."""

from __future__ import annotations

import argparse
from typing import Any

from argcomplete.completers import FilesCompleter

from adaptspec.commands.values import positive
from adaptspec.control.language.library import shipped_policies


def add_models(parser: argparse.ArgumentParser) -> None:
    """Which models and policies to load, and where."""
    group = parser.add_argument_group("models")
    group.add_argument("--model", default="bundled", help="directory or hub id of the target (default: %(default)s)")
    group.add_argument(
        "--draft",
        default="auto",
        help="directory or hub id of the draft model, or 'none' (default: the bundled one "
        "for the bundled target, none for any other)",
    )
    complete_policies(
        group.add_argument(
            "--policy",
            action="append",
            default=[],
            metavar="NAME|FILE",
            help="a shipped policy or a YAML file; may be given again, the first is the default (default: goodput)",
        )
    )
    group.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"], help="(default: %(default)s)")
    group.add_argument(
        "--dtype",
        default="auto",
        choices=["auto", "float32", "bfloat16", "float16"],
        help="of weights and caches (default: %(default)s, what suits device and model)",
    )
    group.add_argument(
        "--context",
        "--max-model-len",
        type=positive,
        metavar="TOKENS",
        help="tokens per request (default: the model's own limit)",
    )
    group.add_argument(
        "--no-task-detection", action="store_true", help="take a request's task from its hint only, not from its prompt"
    )
    group.add_argument(
        "--max-rows",
        "--max-num-seqs",
        type=positive,
        default=16,
        metavar="N",
        help="requests that run at once (default: %(default)s)",
    )


def complete_policies(action: argparse.Action) -> None:
    """Let shells complete an argument that names policies: with those that ship, and with YAML files."""

    def names(prefix: str, **more: Any) -> list[str]:
        files = FilesCompleter(("yaml", "yml"))(prefix, **more)
        return [path.stem for path in shipped_policies()] + list(files)

    action.completer = names  # type: ignore[attr-defined]

"""Arguments that several commands share."""

from __future__ import annotations

import argparse

from adaptspec.commands.values import positive
from adaptspec.engine.build import AUTO, BUNDLED, EngineConfig
from adaptspec.engine.core import Limits


def add_models(parser: argparse.ArgumentParser) -> None:
    """Which models and policies to load, and where."""
    group = parser.add_argument_group("models")
    group.add_argument("--model", default=BUNDLED, help="directory or hub id of the target (default: the bundled one)")
    group.add_argument(
        "--draft",
        default=AUTO,
        help="directory or hub id of the draft model, or 'none' (default: the bundled one "
        "for the bundled target, none for any other)",
    )
    group.add_argument(
        "--policy",
        action="append",
        default=[],
        metavar="NAME|FILE",
        help="a shipped policy or a YAML file; may be given again, the first is the default (default: goodput)",
    )
    group.add_argument("--device", default=AUTO, choices=[AUTO, "cpu", "cuda"])
    group.add_argument("--dtype", default=AUTO, choices=[AUTO, "float32", "bfloat16", "float16"])
    group.add_argument("--context", type=positive, help="tokens per request (default: the model's own limit)")
    group.add_argument(
        "--no-task-detection", action="store_true", help="take a request's task from its hint only, not from its prompt"
    )
    group.add_argument("--max-rows", type=positive, default=16, help="requests that run at once (default: %(default)s)")


def engine_config(arguments: argparse.Namespace) -> EngineConfig:
    """What `add_models` was given."""
    return EngineConfig(
        model=arguments.model,
        draft=None if arguments.draft == "none" else arguments.draft,
        policies=tuple(arguments.policy),
        device=arguments.device,
        dtype=arguments.dtype,
        context=arguments.context,
        limits=Limits(max_rows=arguments.max_rows),
        detect_tasks=not arguments.no_task_detection,
    )

"""Engines as the command line asks for them. Loads what engines need."""

from __future__ import annotations

import argparse
from dataclasses import replace

from adaptspec.command_line import given_values
from adaptspec.engine.build import EngineConfig


def engine_config(arguments: argparse.Namespace, base: EngineConfig | None = None) -> EngineConfig:
    """What `add_models` was given, over `base` or the defaults."""
    given = given_values(arguments)
    config = replace(
        base or EngineConfig(),
        **{name: given[name] for name in ("model", "device", "dtype", "context") if name in given},
    )
    if "draft" in given:
        config = replace(config, draft=None if given["draft"] == "none" else given["draft"])
    if "policy" in given:
        config = replace(config, policies=tuple(given["policy"]))
    if "max_rows" in given:
        config = replace(config, limits=replace(config.limits, max_rows=given["max_rows"]))
    if "no_task_detection" in given:
        config = replace(config, detect_tasks=not given["no_task_detection"])
    return config

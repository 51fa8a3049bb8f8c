"""What `adaptspec train` does."""

from __future__ import annotations

import argparse
from dataclasses import replace

from rich.console import Console

from adaptspec.training.pair import train_pair
from adaptspec.training.pair_settings import preset
from adaptspec.training.task_training import train_tasks


def run_train_pair(arguments: argparse.Namespace) -> int:
    """Train a pair; the exit status is 0."""
    base = preset(arguments.preset)
    names = ("vocab_size", "batch", "window", "device", "target_learning_rate", "draft_learning_rate")
    given = {name: getattr(arguments, name) for name in ("target_minutes", "draft_minutes", *names)}
    chosen = {name: value for name, value in given.items() if value is not None}
    settings = replace(base, **chosen).with_source_weights(arguments.source_weight)
    train_pair(arguments.corpus, arguments.out, settings, Console(stderr=True), arguments.prompts)
    return 0


def run_train_tasks(arguments: argparse.Namespace) -> int:
    """Train the task detector; the exit status is 0."""
    train_tasks(arguments.corpus, arguments.out, Console(stderr=True), arguments.prompts, arguments.form)
    return 0

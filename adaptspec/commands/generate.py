"""`adaptspec generate`: one prompt, completed in the terminal."""

from __future__ import annotations

import argparse

from adaptspec.command_line import later
from adaptspec.commands.arguments import add_models
from adaptspec.commands.values import positive


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `adaptspec generate`."""
    parser.add_argument("prompt", help="the text to complete; - reads it from standard input")
    parser.add_argument("--chat", action="store_true", help="wrap the prompt in the model's chat template")
    parser.add_argument("--max-tokens", type=positive, default=128)
    parser.add_argument("--temperature", type=float, default=0.0, help="0 (the default) is greedy")
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--max-depth", type=int, help="deepest draft; 0 switches speculation off")
    add_models(parser)
    parser.set_defaults(run=later("adaptspec.commands.run_generate:run_generate"))

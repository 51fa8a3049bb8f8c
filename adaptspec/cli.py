"""The command line: reads arguments, calls the command they name, prints errors one per line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from adaptspec import __version__
from adaptspec.commands import bench, generate, policy, serve, state, train
from adaptspec.errors import AdaptSpecError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit status is 0, or 2 for an error of the user's to mend."""
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except AdaptSpecError as error:
        for line in str(error).splitlines():
            print(f"adaptspec: {line}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="adaptspec",
        description="Serve language models with adaptive speculative decoding: the same text, sooner.",
        epilog="Start with `adaptspec serve`: it needs no arguments and serves the bundled model pair.",
    )
    parser.add_argument("--version", action="version", version=f"adaptspec {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    serve.add_arguments(commands.add_parser("serve", help="start an OpenAI-compatible HTTP server"))
    generate.add_arguments(commands.add_parser("generate", help="complete one prompt here in the terminal"))
    policy.add_arguments(commands.add_parser("policy", help="list, check, compare and import policies"))
    state.add_arguments(commands.add_parser("state", help="look at what was learned, and merge it"))
    bench.add_arguments(commands.add_parser("bench", help="measure speed and exactness, record tapes"))
    train.add_arguments(commands.add_parser("train", help="train models"))
    return parser


if __name__ == "__main__":
    sys.exit(main())

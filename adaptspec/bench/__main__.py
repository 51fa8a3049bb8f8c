"""`python -m adaptspec.bench quick|exactness`: the same as `adaptspec bench`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from adaptspec.bench.command import add_benchmarks
from adaptspec.errors import AdaptSpecError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one benchmark; the exit status is its own, or 2 for an error of the user's to mend."""
    parser = argparse.ArgumentParser(prog="python -m adaptspec.bench", description=__doc__)
    add_benchmarks(parser)
    arguments = parser.parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except AdaptSpecError as error:
        print(f"adaptspec.bench: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())

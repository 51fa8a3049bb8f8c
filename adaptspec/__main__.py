"""`python -m adaptspec` is the `adaptspec` command."""

from __future__ import annotations

import sys

from adaptspec.cli import main

if __name__ == "__main__":
    sys.exit(main())

"""`python -m adaptspec` is the `adaptspec` command."""

from __future__ import annotations

from adaptspec.cli import run

if __name__ == "__main__":
    run()

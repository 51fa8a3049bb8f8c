"""What commands print: results as text or JSON on standard output, progress on standard error, files at the end."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptspec.errors import ConfigError

if TYPE_CHECKING:
    from adaptspec.tables import Table


def add_json(parser: argparse.ArgumentParser) -> None:
    """`--json`, of every command that prints a result."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def print_result(arguments: argparse.Namespace, result: Any, parts: Iterable[Table | str]) -> int:
    """Print what a command found, with `--json` as one object, else as sentences and tables. Returns 0."""
    from adaptspec.tables import show

    if arguments.json:
        print(json.dumps(result, indent=1, allow_nan=False))
    else:
        show(parts)
    return 0


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[..., None]]:
    """A bar on standard error, or lines where that is no terminal.

    Yields a function to be called after each step, with a word on it or without; with `advance=0` it shows a word only.
    """
    from rich.console import Console
    from rich.progress import Progress

    from adaptspec.start_status import StartStatus

    console = Console(stderr=True)
    if not console.is_terminal:
        status, done = StartStatus(console, what), 0

        def step(said: str = what, advance: int = 1) -> None:
            nonlocal done
            done += advance
            status(f"{said} ({done} of {total})")

        yield step
        return
    with Progress(console=console) as bar:
        work = bar.add_task(what, total=total)
        yield lambda said=what, advance=1: bar.update(work, advance=advance, description=said)


def write_text(path: Path, text: str, flag: str) -> None:
    """Write the file that `flag` names. Raises ConfigError: it cannot be written."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{flag} {path}: cannot be written ({error.strerror}); choose another file") from error

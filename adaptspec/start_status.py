"""Shows the phases of a start: a status line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.status import Status

EVERY_SECONDS = 5.0  # between lines of one phase
Progress = Callable[[str], None]  # called with the phase that begins


def no_progress(_: str) -> None:
    """Progress that is not shown."""


def resident_bytes(status: Path = Path("/proc/self/status")) -> int | None:
    """Memory of this process that is resident now; None where the system has no such file."""
    try:
        found = re.search(r"^VmRSS:\s*(\d+) kB$", status.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None


class StartStatus:
    """Shows phases such as "reading weights" or "trying drafts (7 of 24)"; the part in brackets is within a phase.

    A context manager, which removes the status line at its end.
    """

    def __init__(self, console: Console, first: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`first` is shown on a terminal until the first call."""
        self._console, self._clock = console, clock
        self._began = self._printed = clock()
        self._phase = ""
        self._status: Status | None = None
        if console.is_terminal:
            self._status = console.status(first)
            self._status.start()

    def __enter__(self) -> StartStatus:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def seconds(self) -> float:
        """Since it was made."""
        return self._clock() - self._began

    def __call__(self, text: str) -> None:
        """Show what is done now; may be called from any thread."""
        if self._status is not None:
            self._status.update(text)
            return
        phase, now = text.partition(" (")[0], self._clock()
        if phase != self._phase or now - self._printed >= EVERY_SECONDS:
            self._phase, self._printed = phase, now
            self._console.print(text, highlight=False, soft_wrap=True, markup=False)

    def close(self) -> None:
        """Remove the status line; may be called again."""
        if self._status is not None:
            self._status.stop()

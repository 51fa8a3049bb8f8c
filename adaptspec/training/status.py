"""Progress of long work on standard error: a bar on a terminal, otherwise a line every half minute."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

EVERY_SECONDS = 30.0  # between lines


def duration(seconds: float) -> str:
    """Seconds in words, such as `2 h 05 min`."""
    if seconds < 90:
        return f"{max(seconds, 0.0):.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


class Status:
    """Shows how much of some work is done and when it will end. A context manager.

    The remaining time follows from the mean speed since the start of this part, so that it is steady for slow steps.
    """

    def __init__(
        self,
        console: Console,
        name: str,
        total: float,
        done: float = 0.0,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`done` of `total` was done by an earlier run."""
        self._console, self._name, self._total, self._first, self._clock = console, name, total, done, clock
        self._began = self._printed = clock()
        columns = (
            TextColumn("{task.description:>8}"),
            BarColumn(),
            TextColumn("{task.percentage:3.0f} % {task.fields[text]}"),
        )
        self._bar = Progress(*columns, console=console) if console.is_terminal else None
        if self._bar is not None:
            self._task = self._bar.add_task(name, total=total, text="starting")
            self._bar.update(self._task, completed=done)

    def __enter__(self) -> Status:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, done: float, text: str = "") -> None:
        """Show that `done` of the total is done, with a few words on it."""
        now = self._clock()
        line = ", ".join(part for part in (text, self._left(done, now - self._began)) if part)
        if self._bar is not None:
            self._bar.update(self._task, completed=done, text=line)
        elif now - self._printed >= EVERY_SECONDS or done >= self._total:
            self._printed = now
            self._console.print(
                f"{self._name}: {min(done / self._total, 1.0):.0%}, {line}", highlight=False, soft_wrap=True
            )

    def _left(self, done: float, elapsed: float) -> str:
        if done >= self._total:
            return f"done in {duration(elapsed)}"
        return f"{duration(elapsed * (self._total - done) / (done - self._first))} left" if done > self._first else ""

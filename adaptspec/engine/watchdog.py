"""Detects an engine that hangs, so that its clients get an error instead of waiting forever.

One rule: an engine hangs if it has work, could run, and reports no progress for longer than both `hang_seconds` and ten
times the longest time between two reports that was seen recently or is expected. A slow round reports progress many
times (see `report_progress`), so it is not a hang, however long it takes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

_log = logging.getLogger(__name__)
# A silence is a hang only if it is this many times as long as those that ended by themselves.
MULTIPLE = 10.0
# Seconds of work for which a silence is remembered: the machine may be quieter since.
REMEMBERED = 600.0
# Maximum seconds that count between two looks: if the watchdog looks late, the process did not run.
_LONGEST_LOOK = 1.0
# Maximum share of a silence that waiting for a processor excuses, so that hangs are noticed on a busy machine.
_MAX_FORGIVEN = 0.9


def waited_for_processor(threads: Path = Path("/proc/self/task")) -> float:
    """Seconds that threads of this process were ready to run and had no processor, in total.

    Read from Linux's schedstat; elsewhere 0. All threads count: the engine thread waits for those that compute for it
    and for those that hold the interpreter.
    """
    total = 0
    for thread in threads.glob("*/schedstat"):
        try:
            total += int(thread.read_text().split()[1])
        except (OSError, IndexError, ValueError):
            continue  # the thread has just ended, or the kernel has no such statistics
    return total / 1e9


class Watched(Protocol):
    """The part of an engine that the watchdog uses."""

    @property
    def heartbeat(self) -> int | None:
        """A number that grows with every report of progress; None while the engine has nothing to do."""

    def stack(self) -> str:
        """The current stack of the engine thread, for the log."""

    def mark_hung(self, reason: str) -> None:
        """End every request with an error and refuse new ones."""

    def resume(self) -> None:
        """Accept requests again."""


class Watchdog:
    """Looks at the engine a few times a second, from the event loop."""

    def __init__(
        self,
        engine: Watched,
        seconds: float,
        *,
        expected: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        waited: Callable[[], float] = waited_for_processor,
    ) -> None:
        """No silence of up to `seconds` is a hang. `expected`: the longest time between two reports of progress that
        is usual on this machine, in seconds, by its measured costs.

        Time in which threads waited for a processor does not count (a busy machine). `waited` returns its total, ever
        rising, in seconds.
        """
        self._engine = engine
        self._seconds = seconds
        self._expected = expected
        self._clock = clock
        self._waited = waited
        self._heartbeat: int | None = None
        self._looked = clock()
        self._worked = 0.0  # seconds in which the engine had work
        self._silence = _Silence()
        self._ended: deque[tuple[float, float]] = deque()  # when silences ended, by `_worked`, and how long they were
        self._hangs = False

    @property
    def bound(self) -> float:
        """Seconds of silence, in which the engine could run, that are a hang at the moment."""
        recent = self._ended[0][1] if self._ended else 0.0
        return max(self._first_bound, MULTIPLE * recent)

    @property
    def _first_bound(self) -> float:
        """The bound, in seconds, before any silence was seen."""
        return max(self._seconds, MULTIPLE * self._expected)

    async def run(self, every: float = 0.25) -> None:
        """Look every `every` seconds until cancelled."""
        while True:
            await asyncio.sleep(every)
            self.look()

    def look(self) -> None:
        """Check the engine once: give up on it if it hangs, resume it when it works again."""
        now, heartbeat = self._clock(), self._engine.heartbeat
        passed, self._looked = min(now - self._looked, _LONGEST_LOOK), now
        if heartbeat is None or heartbeat != self._heartbeat:
            self._end_silence()
            self._heartbeat = heartbeat
        else:
            self._silence.grow(passed, self._waited())
        if heartbeat is not None:
            self._worked += passed
        hangs = self._silence.seconds > self.bound
        if hangs and not self._hangs:
            reason = f"it has made no progress for {self.bound:.3g} seconds in which it could run"
            _log.error("the engine hangs: %s; its requests end with an error\n%s", reason, self._engine.stack())
            self._engine.mark_hung(reason)
        elif self._hangs and not hangs:
            _log.warning("the engine works again")
            self._engine.resume()
        self._hangs = hangs

    def _end_silence(self) -> None:
        """Remember how long the silence was: the next one may be as long, on this machine as it is now."""
        # The length of a hang says nothing of how long a pass takes, so a hang counts up to the first bound only. The
        # bound thus grows by one `MULTIPLE` after the first hang, in case it was a slow pass, and not again after the
        # next ones: at the bound of the moment, each hang would be noticed ten times later than the one before.
        seconds = min(self._silence.seconds, self._first_bound) if self._hangs else self._silence.seconds
        self._silence = _Silence()
        while self._ended and self._ended[-1][1] <= seconds:
            self._ended.pop()  # the new one is longer and will be remembered for longer
        self._ended.append((self._worked, seconds))
        while self._worked - self._ended[0][0] > REMEMBERED:
            self._ended.popleft()


class _Silence:
    """Time without a report of progress, less what threads waited for a processor meanwhile."""

    def __init__(self) -> None:
        # Not known before a silence lasts from one look to the next: asking takes half a millisecond.
        self._waited: float | None = None
        self._passed = self._held_up = 0.0

    def grow(self, passed: float, waited: float) -> None:
        """Add `passed` seconds; `waited`: total seconds that threads have waited for a processor so far."""
        self._passed += passed
        if self._waited is not None:
            self._held_up += max(0.0, waited - self._waited)  # the total drops when a thread ends
        self._waited = waited

    @property
    def seconds(self) -> float:
        """Seconds of silence in which the engine could run."""
        return self._passed - min(self._held_up, _MAX_FORGIVEN * self._passed)

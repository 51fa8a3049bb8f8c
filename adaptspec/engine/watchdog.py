"""Notices an engine that hangs: whoever waits for it is told, instead of waiting for ever."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path

from adaptspec.engine.async_engine import AsyncEngine

_log = logging.getLogger(__name__)
# Between two looks no more counts, in seconds: where looking comes late (a process was stopped), so may all else.
_LONGEST = 1.0
# Of a silence no more is forgiven for want of a processor, so that on the fullest machine a hang is noticed, too.
_MOST_HELD_UP = 0.9


def waited_for_processor(threads: Path = Path("/proc/self/task")) -> float:
    """Seconds that threads of this process could have run and were not let, all in all.

    Linux tells; elsewhere 0. Counted are all threads: the engine waits for workers that compute beside it, and for
    whoever holds the interpreter.
    """
    total = 0
    for thread in threads.glob("*/schedstat"):
        try:
            total += int(thread.read_text().split()[1])
        except (OSError, IndexError, ValueError):
            continue  # it has just ended, or this kernel keeps no such figures
    return total / 1e9


class Watchdog:
    """Looks at the engine a few times a second, from the event loop."""

    def __init__(
        self,
        engine: AsyncEngine,
        seconds: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        waited: Callable[[], float] = waited_for_processor,
    ) -> None:
        """`seconds` without a sign of life, in the middle of work, mean that it hangs. No round may take so long.

        Time for which it wanted to run and was not let does not count: that is a full machine. `waited` gives it,
        ever rising, in seconds.
        """
        self._engine = engine
        self._seconds = seconds
        self._clock = clock
        self._waited = waited
        self._beat: float | None = None
        self._silence = _Silence(0.0)
        self._barking = False

    async def run(self, every: float = 0.25) -> None:
        """Look again and again until cancelled."""
        while True:
            await asyncio.sleep(every)
            self.look()

    def look(self) -> None:
        """Give up on an engine that hangs, and take it back when it works again."""
        hangs = self._silent_for() > self._seconds
        if hangs and not self._barking:
            reason = f"it has not answered for {self._seconds:g} seconds in which it could run"
            _log.error("the engine hangs: %s; its requests end with an error", reason)
            self._engine.give_up(reason)
        elif self._barking and not hangs:
            _log.warning("the engine works again")
            self._engine.resume()
        self._barking = hangs

    def _silent_for(self) -> float:
        """Seconds that the engine could have used for a sign of life, since its last one was seen."""
        now, beat = self._clock(), self._engine.beat
        if beat is None:
            return 0.0
        if beat != self._beat:
            self._beat, self._silence = beat, _Silence(now)
            return 0.0
        return self._silence.seconds(now, self._waited())


class _Silence:
    """How long one lasts, less what threads waited for a processor meanwhile."""

    def __init__(self, now: float) -> None:
        self._now = now
        # Not known before it lasts from one look to the next: asking takes half a millisecond, and rounds are short.
        self._waited: float | None = None
        self._passed = self._held_up = 0.0

    def seconds(self, now: float, waited: float) -> float:
        """Up to `now`."""
        self._passed += min(now - self._now, _LONGEST)
        if self._waited is not None:
            self._held_up += max(0.0, waited - self._waited)  # a thread that ended took its share along
        self._now, self._waited = now, waited
        return self._passed - min(self._held_up, _MOST_HELD_UP * self._passed)

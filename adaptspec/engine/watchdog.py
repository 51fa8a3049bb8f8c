"""Notices an engine that hangs: whoever waits for it is told, instead of waiting for ever.

Knows the front and time; not what the engine is busy with.
"""

from __future__ import annotations

import asyncio
import logging

from adaptspec.engine.front import AsyncEngine

_log = logging.getLogger(__name__)


class Watchdog:
    """Looks at the engine a few times a second, from the event loop."""

    def __init__(self, engine: AsyncEngine, seconds: float) -> None:
        """`seconds` without a sign of life, in the middle of work, mean that it hangs. No round may take so long."""
        self._engine = engine
        self._seconds = seconds
        self._barking = False

    async def run(self, every: float = 0.25) -> None:
        """Look again and again until cancelled."""
        while True:
            await asyncio.sleep(every)
            self.look()

    def look(self) -> None:
        """Give up on an engine that hangs, and take it back when it works again."""
        hangs = self._engine.silent_for > self._seconds
        if hangs and not self._barking:
            reason = f"it has not answered for {self._seconds:g} seconds"
            _log.error("the engine hangs: %s; its requests end with an error", reason)
            self._engine.give_up(reason)
        elif self._barking and not hangs:
            _log.warning("the engine works again")
            self._engine.resume()
        self._barking = hangs

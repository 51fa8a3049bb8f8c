"""How often a guard switched speculation off and on, read off the reasons of rounds."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from adaptspec.decision import Reason


@dataclass
class GuardEvents:
    """Counts how often a guard switched speculation off and tried it again, from the reasons of rounds in order.

    A single guarded round between others is no switch: it renews the baseline that rounds are measured against.
    """

    switched_off: int = 0
    probes: int = 0
    came_back: int = 0
    baselines: int = 0
    _now: Reason = Reason.POLICY
    _stretch: int = 0
    _tried: bool = False  # a probe came before this stretch of the guard

    def add(self, reasons: Collection[int]) -> None:
        """Count the next round; `reasons` are those of its rows."""
        now = next((reason for reason in (Reason.GUARD, Reason.PROBE) if reason in reasons), Reason.POLICY)
        if now is self._now:
            self._stretch += 1
        else:
            self._turn(self._now, now)
            self._now, self._stretch = now, 1
        if now is Reason.GUARD and self._stretch == 2 and not self._tried:
            self.switched_off += 1

    def _turn(self, before: Reason, after: Reason) -> None:
        self.baselines += before is Reason.GUARD and after is Reason.POLICY and self._stretch == 1
        self.probes += after is Reason.PROBE
        self.came_back += before is Reason.PROBE and after is Reason.POLICY
        self._tried = before is Reason.PROBE

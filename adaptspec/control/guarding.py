"""How often guards switched speculation off and tried again, read off the reasons of rounds. Knows reasons only."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from adaptspec.types import Reason

_GUARD, _PROBE = int(Reason.GUARD), int(Reason.PROBE)


@dataclass
class Guarding:
    """How often speculation was switched off and tried again, from how stretches of rounds follow each other.

    A single guarded round between others is no switch: it renews the baseline that rounds are measured against.
    """

    switched_off: int = 0
    probes: int = 0
    came_back: int = 0
    baselines: int = 0
    _stance: Reason = Reason.POLICY
    _stretch: int = 0
    _tried: bool = False  # a probe came before this stretch of the guard

    def add(self, reasons: Collection[int]) -> None:
        """One round's reasons."""
        stance = Reason.GUARD if _GUARD in reasons else Reason.PROBE if _PROBE in reasons else Reason.POLICY
        if stance is self._stance:
            self._stretch += 1
        else:
            self._turn(self._stance, stance)
            self._stance, self._stretch = stance, 1
        if stance is Reason.GUARD and self._stretch == 2 and not self._tried:
            self.switched_off += 1

    def _turn(self, before: Reason, after: Reason) -> None:
        self.baselines += before is Reason.GUARD and after is Reason.POLICY and self._stretch == 1
        self.probes += after is Reason.PROBE
        self.came_back += before is Reason.PROBE and after is Reason.POLICY
        self._tried = before is Reason.PROBE

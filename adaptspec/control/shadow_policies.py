"""The shadow policies of an engine together. What one of them does wrong costs no request anything.

Knows who watches whom; how one is estimated is the shadow's affair.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from adaptspec.control.policy import BatchSignals, Policy
from adaptspec.control.shadow_policy import ShadowEstimate, ShadowPolicy
from adaptspec.types import RoundRecord

_log = logging.getLogger(__name__)


class ShadowPolicies:
    """All that watch. One that raises is left out from then on, and the log says why."""

    def __init__(self, shadows: Sequence[ShadowPolicy] = ()) -> None:
        self._shadows = {shadow.name: shadow for shadow in shadows}
        self.any = bool(self._shadows)  # looked at several times per round

    @property
    def policies(self) -> dict[str, Policy]:
        """Those that watch, by name."""
        return {name: shadow.policy for name, shadow in self._shadows.items()}

    def estimates(self) -> tuple[ShadowEstimate, ...]:
        """What each would have earned; may be asked from any thread."""
        return tuple(shadow.estimate for shadow in self._shadows.values())

    def put(self, shadow: ShadowPolicy) -> None:
        """Add a shadow, in place of one of its name."""
        # Others may be reading: the mapping they have stays as it is.
        self._shadows = {**self._shadows, shadow.name: shadow}
        self.any = True

    def drop(self, name: str) -> None:
        """Leave one out, if it is there."""
        self._shadows = {other: shadow for other, shadow in self._shadows.items() if other != name}
        self.any = bool(self._shadows)

    def start(self, row: int, policy: str) -> None:
        """A request of `policy` begins decoding in `row`."""
        for shadow in self._shadows.values():
            if shadow.against == policy:
                self._try(shadow, lambda s: s.start(row))

    def finish(self, row: int) -> None:
        """The request in `row` has ended."""
        for shadow in self._shadows.values():
            self._try(shadow, lambda s: s.finish(row))

    def decide(self, signals: BatchSignals) -> tuple[int, ...]:
        """A round begins. Returns the engine's drafters whose hindsight would help."""
        for shadow in self._shadows.values():
            self._try(shadow, lambda s: s.decide(signals))
        return tuple(which for shadow in self._shadows.values() for which in shadow.watched)

    def learn(self, record: RoundRecord) -> None:
        """A round has ended."""
        for shadow in self._shadows.values():
            self._try(shadow, lambda s: s.learn(record))

    def _try(self, shadow: ShadowPolicy, call: Callable[[ShadowPolicy], None]) -> None:
        try:
            call(shadow)
        except Exception:  # noqa: BLE001 - a policy on trial must never cost a request its answer
            _log.exception("the shadow policy %s failed; it no longer watches", shadow.name)
            self.drop(shadow.name)

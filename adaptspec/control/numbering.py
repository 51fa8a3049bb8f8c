"""One policy's drafters among the engine's: its first is number 0 to the policy, any number to the engine.

Knows numbers and which arrays count drafters; it does not know what a drafter is.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adaptspec.control.arrays import alike
from adaptspec.control.copies import changed
from adaptspec.control.policy import BatchSignals, Decision, Policy
from adaptspec.types import IntArray, RoundRecord


class DrafterNumbers:
    """Translates what a policy sees and says. Where both count alike nothing is copied."""

    def __init__(self, wanted: Sequence[str], drafters: Sequence[str]) -> None:
        """`wanted` are the policy's, all of them among the engine's `drafters`; none for a policy that never drafts."""
        self.watched = tuple(drafters.index(name) for name in wanted)
        self._engine: IntArray = np.array(self.watched or (0,), dtype=np.int64)
        self._own: IntArray = np.zeros(max(1, len(drafters)), dtype=np.int64)
        self._own[self._engine] = np.arange(len(self._engine))
        self.alike = alike(self._engine - np.arange(len(self._engine)), 0)
        self._first: IntArray = np.zeros(0, dtype=np.int64)

    def signals(self, signals: BatchSignals) -> BatchSignals:
        """For the policy: the lags and offers of its drafters first."""
        if self.alike:
            return signals
        return changed(signals, lag=self._mine(signals.lag), offered=self._mine(signals.offered))

    def decided(self, policy: Policy, signals: BatchSignals) -> Decision:
        """What the policy decides, in the engine's numbers."""
        decision = policy.decide(self.signals(signals))
        return decision if self.alike else changed(decision, drafter=self.drafter(decision.drafter))

    def drafter(self, drafter: IntArray) -> IntArray:
        """For the engine: who drafts for each row [B]."""
        if self.alike:
            return drafter
        translated: IntArray = self._engine[drafter]
        return translated

    def record(self, record: RoundRecord) -> RoundRecord:
        """For the policy: a round in its own numbers. A drafter it does not have (any more) becomes its first."""
        if self.alike:
            return record
        shadow, drafted = record.shadow, record.shadow_drafted
        return changed(
            record,
            drafter=self._translated(record.drafter),
            shadow=None if shadow is None else self._mine(shadow),
            shadow_drafted=None if drafted is None else self._mine(drafted),
        )

    def _mine(self, values: IntArray) -> IntArray:
        """Those of its drafters, of values [drafters, B]: a view for a single one, which takes a fifth of a copy."""
        if len(self._engine) > 1:
            return values[self._engine]
        which = self._engine.item()
        return values[which : which + 1]

    def _translated(self, drafter: IntArray) -> IntArray:
        if len(self._engine) > 1:
            return self._own[drafter]
        if len(self._first) != len(drafter):
            self._first = np.zeros(len(drafter), dtype=np.int64)
        return self._first

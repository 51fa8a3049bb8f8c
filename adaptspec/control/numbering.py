"""One policy's drafters among the engine's: its first is number 0 to the policy, any number to the engine.

Knows numbers and which arrays count drafters; it does not know what a drafter is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from adaptspec.control.arrays import alike
from adaptspec.control.policy import BatchSignals
from adaptspec.types import IntArray, RoundRecord


class DrafterNumbers:
    """Translates what a policy sees and says. Where both count alike nothing is copied."""

    def __init__(self, wanted: Sequence[str], drafters: Sequence[str]) -> None:
        """`wanted` are the policy's, all of them among the engine's `drafters`; none for a policy that never drafts."""
        self.watched = tuple(drafters.index(name) for name in wanted)
        self._engine: IntArray = np.array(self.watched or (0,), dtype=np.int64)
        self._own: IntArray = np.zeros(max(1, len(drafters)), dtype=np.int64)
        self._own[self._engine] = np.arange(len(self._engine))
        self._alike = alike(self._engine - np.arange(len(self._engine)), 0)

    def signals(self, signals: BatchSignals) -> BatchSignals:
        """For the policy: the lags and offers of its drafters first."""
        if self._alike:
            return signals
        return replace(signals, lag=signals.lag[self._engine], offered=signals.offered[self._engine])

    def drafter(self, drafter: IntArray) -> IntArray:
        """For the engine: who drafts for each row [B]."""
        if self._alike:
            return drafter
        translated: IntArray = self._engine[drafter]
        return translated

    def record(self, record: RoundRecord) -> RoundRecord:
        """For the policy: a round in its own numbers. A drafter it does not have (any more) becomes its first."""
        if self._alike:
            return record
        shadow, drafted = record.shadow, record.shadow_drafted
        return replace(
            record,
            drafter=self._own[record.drafter],
            shadow=None if shadow is None else shadow[self._engine],
            shadow_drafted=None if drafted is None else drafted[self._engine],
        )

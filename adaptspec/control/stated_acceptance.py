"""How likely tokens are to be kept whose drafter says beforehand how sure it is of each: its word, calibrated."""

from __future__ import annotations

import numpy as np

from adaptspec.control.acceptance import Calibration
from adaptspec.control.policy import BatchSignals, Learner
from adaptspec.types import FloatArray, IntArray, RoundRecord

# Rounds that are learned together at most.
_ROUNDS = 32


class StatedAcceptance(Learner):
    """What is known of a model-free drafter that states its confidence. It is scored where it does not run, too."""

    def __init__(self, rows: int, tasks: int, depth: int) -> None:
        self.calibration = Calibration(rows, tasks, least=0.0)  # counts are right as often as they say
        self._depth = depth
        self._pending: list[tuple[FloatArray, IntArray, IntArray, IntArray, IntArray]] = []

    def start(self, row: int) -> None:
        self.calibration.start(row)
        for _, rows, *_ in self._pending:  # of a request that has ended
            rows[rows == row] = -1

    def likely(self, which: int, signals: BatchSignals) -> FloatArray:
        """Tokens expected to be kept of 0, 1, 2 ... of those found as drafter `which`, for each row [B, 1 + depth]."""
        confidence = self._within(signals.stated, which, len(signals.rows))
        unknown = np.isnan(confidence)
        chances = self.calibration.acceptance(signals.rows, signals.tasks)
        bins = self.calibration.bins_of(np.where(unknown, 0.0, confidence))
        rates = np.where(unknown, 0.0, np.take_along_axis(chances, bins, axis=1))
        kept = np.cumsum(np.cumprod(rates, axis=1), axis=1)
        return np.concatenate((np.zeros((len(kept), 1)), kept), axis=1)

    def mark(self, which: int, signals: BatchSignals) -> bytes:
        """Tells what `likely` says of a single row apart from what it says at other times, while nothing is learned."""
        confidence = self._within(signals.stated, which, 1)
        known = confidence[~np.isnan(confidence)]
        return self.calibration.bins_of(known).tobytes()

    def note(self, which: int, record: RoundRecord) -> bool:
        """What it found as drafter `which`, taken or not, beyond the token that came anyway; whether any was right."""
        if record.stated is None:
            return False
        own = (record.drafter == which) & (record.depths > 0)
        drafted, kept = np.where(own, record.chain, 0), np.where(own, record.straight, 0)
        if record.shadow is not None and record.shadow_drafted is not None:
            scored = ~own & (record.shadow[which] >= 0)
            drafted = np.where(scored, record.shadow_drafted[which], drafted)
            kept = np.where(scored, record.shadow[which], kept)
        confidence = self._within(record.stated, which, len(own))
        drafted = np.minimum(drafted, self._depth)
        kept = np.minimum(kept, drafted)
        self._pending.append((confidence, record.rows.copy(), record.tasks, drafted, kept))
        if len(self._pending) >= _ROUNDS:
            self.settle()
        return bool(np.count_nonzero(kept))

    def settle(self) -> None:
        if self._pending:
            confidence, rows, tasks, drafted, kept = (np.concatenate(each) for each in zip(*self._pending, strict=True))
            self._pending.clear()
            self.calibration.observe_confidence(confidence, rows, tasks, drafted, kept)

    def state(self) -> dict[str, FloatArray]:
        self.settle()
        return {"stated": self.calibration.counts()}

    def _within(self, stated: FloatArray | None, which: int, rows: int) -> FloatArray:
        """What drafter `which` stated [B, depth]; NaN where nothing is known."""
        confidence: FloatArray = np.full((rows, self._depth), np.nan)
        if stated is not None:
            own = stated[which, :, : self._depth]
            confidence[:, : own.shape[1]] = own
        return confidence

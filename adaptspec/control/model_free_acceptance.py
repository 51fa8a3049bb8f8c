"""How likely what model-free drafters find is to be kept, which is known before a round.

By the drafter's own word, calibrated, where it says how sure it is of each token; else by how often in a row it has
just been right: text that repeats other text does so in runs.
"""

from __future__ import annotations

import numpy as np

from adaptspec.arrays import FloatArray, IntArray
from adaptspec.control.acceptance import Acceptance, Calibration
from adaptspec.control.policy import BatchSignals, Learner
from adaptspec.rounds import RoundRecord

# Acceptance by runs of 0, 1, 2-3, 4-7, 8-15 and more: a small model's greedy answers to prompts of ten tasks.
_RUNS = np.array([0.60, 0.65, 0.80, 0.87, 0.95, 0.98])
_LONGEST = 16
_ROUNDS = 32  # that are learned together at most
_NGRAM = "lookups"  # the name of its counts in files of learned state, from when it was called so


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

    def note(self, which: int, record: RoundRecord) -> None:
        """What it found as drafter `which`, taken or not."""
        if record.stated is None:
            return
        chains = record.chains(which)
        confidence = self._within(record.stated, which, len(record.rows))
        drafted = np.minimum(chains.drafted, self._depth)
        kept = np.minimum(chains.accepted, drafted)
        self._pending.append((confidence, record.current_rows.copy(), record.tasks, drafted, kept))
        if len(self._pending) >= _ROUNDS:
            self.settle()

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


class NgramAcceptance(Learner):
    """What is known of an n-gram drafter: acceptance by its match run. It is scored where it does not run, too."""

    def __init__(self, rows: int, tasks: int, depth: int) -> None:
        self.by_run = Acceptance(0, tasks, len(_RUNS), prior=_RUNS)
        self.run = [0] * rows
        ahead = np.arange(_LONGEST + 1)[:, None] + np.arange(depth + 1)
        classes = [min(run.bit_length(), len(_RUNS) - 1) for run in range(ahead.max() + 1)]
        self._class: IntArray = np.array(classes)[ahead]
        self._pending: list[tuple[int, int, int, int]] = []
        self._rounds = 0  # that are pending

    def start(self, row: int) -> None:
        self.run[row] = 0

    def likely(self, which: int, signals: BatchSignals) -> FloatArray:  # noqa: ARG002 - it has no more to go by
        """Tokens expected to be kept of 0, 1, 2 ... of those found, for each row [B, 1 + depth]."""
        return self.gains(signals.rows, signals.tasks)

    def gains(self, rows: IntArray, tasks: IntArray) -> FloatArray:
        """Tokens expected to be kept of a draft of 0, 1, 2 ... tokens for each row [B, 1 + depth]."""
        run = [self.run[row] for row in rows.tolist()]
        rates = self.by_run.of_tasks(tasks)[np.arange(len(rows))[:, None], self._class[run, :-1]]
        kept = np.cumsum(np.cumprod(rates, axis=1), axis=1)
        return np.concatenate((np.zeros((len(kept), 1)), kept), axis=1)

    def note(self, which: int, record: RoundRecord) -> None:
        """See `StatedAcceptance.note`; in plain numbers, in a fifth of the time where rounds are shortest."""
        rows, main = record.current_rows, record.main_chains()
        found, right = [-1] * len(rows), [-1] * len(rows)
        if record.shadow is not None and record.shadow_drafted is not None:
            found, right = record.shadow_drafted[which].tolist(), record.shadow[which].tolist()
        run, before = self.run, len(self._pending)
        own = (rows, main.tasks, main.drafter, main.depths, main.drafted, main.accepted)
        told = zip(*(values.tolist() for values in own), found, right, strict=True)
        for row, task, drafter, depth, drafted, straight, looked, good in told:
            tokens, kept = (drafted, straight) if drafter == which and depth > 0 else (looked, good)
            if row < 0:  # how far into a run it was is forgotten
                continue
            ahead = run[row]
            if tokens > 0:
                self._pending.append((task, ahead, tokens, kept))
            ahead = ahead + tokens if kept >= tokens >= 0 else 0
            run[row] = ahead if ahead < _LONGEST else _LONGEST
        self._rounds += len(self._pending) > before
        if self._rounds >= _ROUNDS:
            self.settle()

    def settle(self) -> None:
        if self._pending:
            tasks, run, drafted, right = np.array(self._pending).T
            self._pending.clear()
            self._rounds = 0
            most, nobody = self._class.shape[1], np.full(len(tasks), -1)
            drafted, right = np.minimum(drafted, most), np.minimum(right, most)
            self.by_run.observe_classes(nobody, tasks, self._class[run], drafted, right)

    def state(self) -> dict[str, FloatArray]:
        self.settle()
        return {_NGRAM: self.by_run.counts()}

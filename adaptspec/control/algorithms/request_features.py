"""Features of the requests in a batch, by which a contextual bandit predicts what arms earn."""

from __future__ import annotations

import math

import numpy as np

from adaptspec.arrays import BoolArray, FloatArray
from adaptspec.control.policy import BatchSignals
from adaptspec.control.tasks import TASKS
from adaptspec.rounds import RoundRecord

# Scales that bring features to about 0 to 1.
_BATCH, _ENTROPY, _CONTEXT, _POSITION, _LENGTH = 6.0, 4.0, 12.0, 8.0, 8.0
# Weight of the newest draft in a request's acceptance length.
_NEWEST = 0.25


class RequestFeatures:
    """F features: one-hot task, log2 batch size, entropy of the last drafted token, log2 context length, log2 of the
    tokens emitted so far, and the acceptance length (a moving average of the tokens accepted per draft).
    """

    def __init__(self, max_rows: int, tasks: int) -> None:
        # Tasks that users name share the feature of task 0: a feature for each would cost more than it brings.
        self.tasks = min(tasks, 1 + len(TASKS))
        self.count = self.tasks + 5
        self._entropy, self._length = np.zeros(max_rows), np.zeros(max_rows)

    def start(self, row: int) -> None:
        """A request starts in a row."""
        self._entropy[row] = self._length[row] = 0.0

    def learn(self, record: RoundRecord, running: BoolArray) -> None:
        """Update the requests of a round's rows that are still `running` [B]."""
        if record.entropy.shape[1]:
            last = record.entropy[np.arange(len(record.rows)), record.chain - 1]
            known = running & (record.chain > 0) & ~np.isnan(last)
            rows = record.rows[known]
            self._entropy[rows] = last[known]
            self._length[rows] += _NEWEST * (record.accepted[known] - self._length[rows])

    def of_contexts(self, signals: BatchSignals, shares: FloatArray) -> FloatArray:
        """Features of contexts [m, F]: means over rows, weighted by `shares` [m, B]."""
        rows = np.zeros((len(signals.rows), self.count))
        rows[np.arange(len(rows)), np.where(signals.tasks < self.tasks, signals.tasks, 0)] = 1.0
        rows[:, self.tasks] = math.log2(signals.round_size) / _BATCH
        rows[:, self.tasks + 1] = self._entropy[signals.rows] / _ENTROPY
        rows[:, self.tasks + 2] = np.log2(signals.context + 1.0) / _CONTEXT
        rows[:, self.tasks + 3] = np.log2(signals.position + 1.0) / _POSITION
        rows[:, self.tasks + 4] = self._length[signals.rows] / _LENGTH
        return np.asarray(shares @ rows)

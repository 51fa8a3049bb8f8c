"""What a contextual bandit looks at: task, batch size, how sure the draft was and how long the text is.

Knows signals and records; nothing of arms.
"""

from __future__ import annotations

import math

import numpy as np

from adaptspec.control.policy import BatchSignals
from adaptspec.control.tasks import TASKS
from adaptspec.types import FloatArray, IntArray, RoundRecord

# Scales that bring every feature to about 0 to 1.
_BATCH, _ENTROPY, _CONTEXT, _POSITION = 6.0, 4.0, 12.0, 8.0
# Rounds whose records are held until they are read, which is cheaper for many at once.
_RECORDS = 256
OTHERS = 4
# So many tasks have a base each; names of users' own share that of task 0, since one for all of them would cost more.
OF_TASKS = 1 + len(TASKS)


class Features:
    """[m, tasks + 4]: one-hot task (so every arm has a base per task); log2 batch size, entropy of the last drafted

    token, log2 context length and log2 of tokens emitted so far, all about 0 to 1.
    """

    def __init__(self, rows: int, tasks: int) -> None:
        self._entropy: FloatArray = np.zeros(rows)
        self._records: list[RoundRecord] = []  # not yet read
        self._began: IntArray = np.zeros(rows, dtype=np.int64)  # how many of them are of the row's last request
        self._tasks = min(tasks, OF_TASKS)
        self.count = self._tasks + OTHERS

    def start(self, row: int) -> None:
        """A request begins: nothing drafted yet."""
        self._entropy[row] = 0.0
        self._began[row] = len(self._records)

    def learn(self, record: RoundRecord) -> None:
        """Note how sure the drafts were at their ends."""
        if len(self._records) == _RECORDS:
            self._read()
        self._records.append(record)

    def _read(self) -> None:
        records = [(i, record) for i, record in enumerate(self._records) if record.entropy.shape[1]]
        if records:
            rows = np.concatenate([record.rows for _, record in records])
            drafted = np.concatenate([record.drafted for _, record in records])
            # Of a row that drafted nothing any column will do.
            last = np.concatenate([r.entropy[np.arange(len(r.rows)), r.drafted - 1] for _, r in records])
            number = np.repeat([i for i, _ in records], [len(record.rows) for _, record in records])
            known = (drafted > 0) & ~np.isnan(last) & (number >= self._began[rows])
            self._entropy[rows[known]] = last[known]  # of several the latest
        self._records.clear()
        self._began[:] = 0

    def of(self, signals: BatchSignals, tasks: IntArray, contexts: IntArray, wanted: IntArray) -> FloatArray:
        """[m, F] of the `wanted` contexts: means over their rows. `tasks` and `contexts` are the rows' [B]."""
        self._read()
        rows = np.zeros((len(tasks), self.count))
        rows[np.arange(len(tasks)), np.where(tasks < self._tasks, tasks, 0)] = 1.0
        at = self._tasks
        rows[:, at] = math.log2(signals.round_size) / _BATCH
        rows[:, at + 1] = self._entropy[signals.rows] / _ENTROPY
        rows[:, at + 2] = np.log2(signals.context + 1.0) / _CONTEXT
        rows[:, at + 3] = np.log2(signals.position + 1.0) / _POSITION
        belongs = (contexts == wanted[:, None]).astype(np.float64)
        found: FloatArray = (belongs @ rows) / belongs.sum(axis=1, keepdims=True)
        return found

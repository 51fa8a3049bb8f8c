"""What belongs to the request in each row: one struct of arrays, which the controller owns.

A round's signals carry what policies see of it, and its record bears it back, however late: no part keeps a copy.
"""

from __future__ import annotations

import numpy as np

from adaptspec.types import FloatArray, IntArray, SpeculationParams

_UNBOUND = int(np.iinfo(np.int64).max)


class Rows:
    """Arrays [rows]; a free row has the values of its last request but for its wishes."""

    def __init__(self, rows: int) -> None:
        self.policies, self.tasks, self.keys = (np.zeros(rows, dtype=np.int64) for _ in range(3))
        self.key_names: list[str | None] = [None] * rows  # a policy that comes later may ask for them
        self.ceilings: IntArray = np.full(rows, _UNBOUND)
        self.thresholds: FloatArray = np.full(rows, np.nan)
        self.taken = [False] * rows
        self.with_thresholds = 0

    def start(self, row: int, policy: int, task: int, wishes: SpeculationParams) -> None:
        """A request begins in `row`, which is free."""
        self.policies[row], self.tasks[row] = policy, task
        self.taken[row] = True
        if wishes.max_depth is not None:
            self.ceilings[row] = wishes.max_depth
        if wishes.stop_threshold is not None:
            self.thresholds[row] = wishes.stop_threshold
            self.with_thresholds += 1

    def finish(self, row: int) -> None:
        """The request in `row` has ended."""
        self.taken[row], self.ceilings[row] = False, _UNBOUND
        if not np.isnan(self.thresholds[row]):
            self.thresholds[row] = np.nan
            self.with_thresholds -= 1

    def of(self, policy: int) -> list[int]:
        """The rows that run under a policy."""
        return [row for row, taken in enumerate(self.taken) if taken and self.policies[row] == policy]

"""Whose statistics an arm is chosen by: a request's, a task's, all traffic's; and which batch sizes are alike.

Knows rows and tasks as numbers; nothing of arms.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from adaptspec.control.cost import batch_bucket
from adaptspec.types import IntArray

Scope = Literal["request", "task", "batch-bucket", "global"]


class Contexts:
    """Numbers of contexts. A context plays one arm at a time.

    `request`: one per request, leaning on its task. `task`: one per task, leaning on all traffic. `batch-bucket`: one.
    `global`: one, and all batch sizes count as alike. The others keep statistics per batch bucket, 1, 2, 3-4, 5-8 ...
    """

    def __init__(self, scope: Scope, rows: int, tasks: int) -> None:
        self.scope = scope
        self.buckets = 1 if scope == "global" else batch_bucket(rows) + 1
        self.sizes = {"all": 1}
        if scope in ("task", "request"):
            self.sizes["task"] = tasks
        if scope == "request":
            # Two for each row, in turns: notes of the last request are learned while the next one runs.
            self.sizes["request"] = 2 * rows
        self.first = dict(zip(self.sizes, np.cumsum([0, *self.sizes.values()]).tolist(), strict=False))
        self.level = list(self.sizes)[-1]
        self.count = self.sizes[self.level]
        self._rows = rows
        self.tasks: IntArray = np.zeros(rows, dtype=np.int64)
        self._of_row: IntArray = np.arange(rows) if scope == "request" else np.zeros(rows, dtype=np.int64)
        self._task_of: IntArray = np.zeros(self.count, dtype=np.int64)

    def start(self, row: int, task: int) -> int:
        """A request begins; its context."""
        self.tasks[row] = task
        if self.scope == "request":
            self._of_row[row] = (self._of_row[row] + self._rows) % (2 * self._rows)
            self._task_of[self._of_row[row]] = task
        elif self.scope == "task":
            self._of_row[row] = task
        return int(self._of_row[row])

    def of(self, rows: IntArray) -> IntArray:
        """The context of each row."""
        found: IntArray = self._of_row[rows]
        return found

    def task_of(self, contexts: IntArray) -> IntArray:
        """The task of requests' contexts."""
        found: IntArray = self._task_of[contexts]
        return found

    def bucket(self, size: int) -> int:
        """Which batch sizes a round of `size` rows is compared with."""
        return min(batch_bucket(size), self.buckets - 1)

    def path(self, contexts: IntArray, tasks: IntArray) -> IntArray:
        """[levels, m] where some contexts [m] and those they lean on are found, numbered from one level to the next."""
        path = np.zeros((len(self.sizes), len(contexts)), dtype=np.int64)
        if self.scope == "request":
            path[1] = self.first["task"] + tasks
        if self.level != "all":
            path[-1] = self.first[self.level] + contexts
        return path

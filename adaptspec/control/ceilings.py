"""Ceilings: how deep a round may draft at all, by batch size, free memory and task.

Knows limits, not choices: a chooser plans below them, so that nothing it decides is cut off afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from adaptspec.control.batch_schedule import BatchSchedule
from adaptspec.control.policy import BatchSignals
from adaptspec.types import IntArray

_UNBOUND = 2**31


@dataclass(frozen=True)
class Bounds:
    """What bounds all rows of a round alike; None leaves a bound out."""

    max_batch_size: int | None = None
    by_batch_size: BatchSchedule | None = None
    min_free_memory: float | None = None

    @property
    def any(self) -> bool:
        """Whether there is anything to look at."""
        return self != Bounds()

    def of(self, signals: BatchSignals) -> int:
        """The deepest draft any row may have in this round."""
        if self.max_batch_size is not None and signals.round_size > self.max_batch_size:
            return 0
        if self.min_free_memory is not None and signals.free_memory < self.min_free_memory:
            return 0
        return _UNBOUND if self.by_batch_size is None else self.by_batch_size.depth(signals.round_size)


class Ceilings:
    """Bounds of the whole round, those that some tasks have instead, and the deepest draft of single tasks."""

    def __init__(
        self,
        bounds: Bounds,
        task_depths: Mapping[int, int],
        tasks: int,
        task_bounds: Mapping[int, Bounds] | None = None,
    ) -> None:
        """`task_depths`: by task number, below `tasks`; a task that is not there is not bound.

        `task_bounds` take the place of `bounds` for rows of their tasks.
        """
        self._bounds = bounds
        self._task_bounds = dict(task_bounds or {})
        self._by_task: IntArray | None = None
        if task_depths:
            self._by_task = np.full(tasks, _UNBOUND, dtype=np.int64)
            for task, depth in task_depths.items():
                self._by_task[task] = depth

    def limits(self, signals: BatchSignals) -> IntArray:
        """What the rows may draft [B]: `signals.limits` itself where nothing bounds them."""
        limits, tasks, bound = signals.limits, signals.tasks, self._bounds.of(signals)
        if self._task_bounds:
            of_task = {task: bounds.of(signals) for task, bounds in self._task_bounds.items()}
            if min(bound, *of_task.values()) < _UNBOUND:
                own = [tasks == task for task in of_task]
                limits = np.minimum(limits, np.select(own, [np.int64(b) for b in of_task.values()], bound))
        elif bound < _UNBOUND:
            limits = np.minimum(limits, bound)
        if self._by_task is not None:
            limits = np.minimum(limits, self._by_task[tasks])
        return limits

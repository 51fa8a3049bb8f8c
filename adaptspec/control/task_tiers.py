"""The depths that single tasks are kept to. Knows tasks and depths; what a chooser wanted them for it does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from adaptspec.types import IntArray


class TaskTiers:
    """depth -> the deepest allowed depth that is not deeper, 0 if there is none."""

    def __init__(self, tiers: Mapping[int, Sequence[int]], tasks: int, deepest: int) -> None:
        """`tiers`: by task number, below `tasks`; a task that is not there may have any depth up to `deepest`."""
        self._lowered: IntArray = np.tile(np.arange(deepest + 1), (tasks, 1))
        for task, allowed in tiers.items():
            steps = np.unique([0, *allowed])
            self._lowered[task] = steps[np.searchsorted(steps, self._lowered[task], side="right") - 1]

    def lower(self, depths: IntArray, tasks: IntArray) -> IntArray:
        """Depths [B] of rows of these tasks [B], none above what it was."""
        lowered: IntArray = self._lowered[tasks, depths]
        return lowered

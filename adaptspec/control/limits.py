"""How deep a round may draft at all, by batch size and task.

An algorithm plans below these limits, so that they cut nothing off afterwards; only its choices between the tiers of a
task are lowered.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from typing import Annotated

import numpy as np
from pydantic import AfterValidator, Field

from adaptspec.arrays import IntArray
from adaptspec.control.language.schema import Part
from adaptspec.control.policy import BatchSignals

LARGEST_BATCH = 65_536
DEEPEST = 64
_UNBOUND = 2**31


def _checked(ranges: list[list[int]]) -> list[list[int]]:
    """In order of batch size."""
    end = 0
    for one in sorted(ranges):
        if len(one) != 3 or not (1 <= one[0] <= one[1] <= LARGEST_BATCH and 0 <= one[2] <= DEEPEST):
            raise ValueError(
                f"{one} is no [first batch size, last batch size, depth]; "
                f"batch sizes go from 1 to {LARGEST_BATCH}, depths from 0 to {DEEPEST}"
            )
        if one[0] <= end:
            raise ValueError(f"the range {one} overlaps the one that ends at {end}")
        if not end and one[0] != 1:
            raise ValueError(f"the first range must start at batch size 1, not {one[0]}")
        end = one[1]
    return sorted(ranges)


# [first batch size, last, depth] as in vLLM's `num_speculative_tokens_per_batch_size`: [[1, 4, 3], [5, 16, 1]].
Ranges = Annotated[list[list[int]], Field(min_length=1, max_length=256), AfterValidator(_checked)]


def depth_at(ranges: Ranges, batch_size: int) -> int:
    """Of the range that a batch size falls in; in a gap, or beyond the last range, of the one before it."""
    return ranges[max(bisect.bisect_right(ranges, batch_size, key=lambda one: one[0]) - 1, 0)][2]


class BatchLimits(Part):
    """What bounds all rows of a round alike; None leaves a bound out."""

    max_batch_size: int | None = Field(default=None, ge=1, description="No drafts in rounds of more requests.")
    depth_by_batch_size: Ranges | None = Field(
        default=None, description="Depths as [first batch size, last batch size, deepest draft] ranges."
    )

    @property
    def binds(self) -> bool:
        """Whether there is any bound."""
        return self.max_batch_size is not None or self.depth_by_batch_size is not None

    def of(self, signals: BatchSignals) -> int:
        """The deepest draft any row may have in this round."""
        if self.max_batch_size is not None and signals.round_size > self.max_batch_size:
            return 0
        ranges = self.depth_by_batch_size
        return _UNBOUND if ranges is None else depth_at(ranges, signals.round_size)


class TaskLimits:
    """The depths that tasks allow."""

    def __init__(self, allowed: Mapping[int, Sequence[int]], tasks: int, max_depth: int) -> None:
        """`allowed`: depths by task number, below `tasks`; a task without any may have each up to `max_depth`."""
        self._lowered: IntArray = np.tile(np.arange(max_depth + 1), (tasks, 1))
        for task, depths in allowed.items():
            steps = np.unique([0, *depths])
            self._lowered[task] = steps[np.searchsorted(steps, self._lowered[task], side="right") - 1]

    def lower(self, depths: IntArray, tasks: IntArray) -> IntArray:
        """For each depth [B], up to `max_depth`, the deepest that its task allows and that is not deeper."""
        lowered: IntArray = self._lowered[tasks, depths]
        return lowered

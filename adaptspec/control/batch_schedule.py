"""A depth per batch size, in the format of vLLM's schedules. Knows numbers only."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Annotated

from pydantic import AfterValidator, Field

from adaptspec.errors import ConfigError

LARGEST_BATCH = 65_536
DEEPEST = 64


class BatchSchedule:
    """depth = K of the range [first, last, K] that the batch size falls in.

    Ranges as in vLLM's `num_speculative_tokens_per_batch_size`: [[1, 4, 3], [5, 16, 1], [17, 512, 0]]. They start at 1
    and do not overlap; a batch size in a gap, or beyond the last range, takes the K of the range before it.
    """

    def __init__(self, ranges: Sequence[Sequence[int]]) -> None:
        """
        Raises:
            ConfigError: the ranges do not start at 1, overlap, or are no ranges.
        """
        ordered = sorted(tuple(entry) for entry in ranges)
        if not ordered:
            raise ConfigError("the schedule is empty; give ranges such as [1, 8, 3]")
        end = 0
        for entry in ordered:
            if len(entry) != 3 or not (1 <= entry[0] <= entry[1] <= LARGEST_BATCH and 0 <= entry[2] <= DEEPEST):
                raise ConfigError(
                    f"{list(entry)} is no [first batch size, last batch size, depth]; "
                    f"batch sizes go from 1 to {LARGEST_BATCH}, depths from 0 to {DEEPEST}"
                )
            if entry[0] <= end:
                raise ConfigError(f"the range {list(entry)} overlaps the one that ends at {end}")
            if not end and entry[0] != 1:
                raise ConfigError(f"the first range must start at batch size 1, not {entry[0]}")
            end = entry[1]
        self._firsts = [entry[0] for entry in ordered]
        self._depths = [entry[2] for entry in ordered]

    @property
    def max_depth(self) -> int:
        """The deepest draft of any batch size."""
        return max(self._depths)

    def depth(self, batch_size: int) -> int:
        """The depth of a round of this many rows."""
        return self._depths[max(bisect.bisect_right(self._firsts, batch_size) - 1, 0)]


def _checked(ranges: list[list[int]]) -> list[list[int]]:
    try:
        BatchSchedule(ranges)
    except ConfigError as error:
        raise ValueError(str(error)) from error
    return ranges


Ranges = Annotated[list[list[int]], Field(min_length=1, max_length=256), AfterValidator(_checked)]

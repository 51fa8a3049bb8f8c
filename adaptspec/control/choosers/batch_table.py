"""Depth by batch size, from a schedule in vLLM's format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import Field, field_validator

from adaptspec.control.choosers.chooser import Choice, Chooser, Parts
from adaptspec.control.policy import BatchSignals
from adaptspec.control.schema import Part
from adaptspec.errors import ConfigError
from adaptspec.types import IntArray, Reason, RoundRecord


class BatchTable:
    """depth = K of the range [first, last] that the batch size falls in.

    Ranges as in vLLM's `num_speculative_tokens_per_batch_size`: [[1, 4, 3], [5, 16, 1], [17, 512, 0]]. They start at 1
    and do not overlap; a batch size in a gap, or beyond the last range, takes the K of the range before it.

    Regimes: right where acceptance is stable and only the load varies; blind to what is being written.
    Source: vLLM documentation, "Dynamic Speculative Decoding".
    """

    def __init__(self, schedule: Sequence[Sequence[int]]) -> None:
        """
        Raises:
            ConfigError: the ranges do not start at 1, overlap, or are no ranges.
        """
        ranges = sorted(tuple(entry) for entry in schedule)
        if not ranges:
            raise ConfigError("the schedule is empty; give ranges such as [1, 8, 3]")
        end = 0
        for entry in ranges:
            if len(entry) != 3 or entry[0] < 1 or entry[1] < entry[0] or entry[2] < 0:
                raise ConfigError(f"{list(entry)} is no [first batch size, last batch size, depth]")
            if entry[0] <= end:
                raise ConfigError(f"the range {list(entry)} overlaps the one that ends at {end}")
            if not end and entry[0] != 1:
                raise ConfigError(f"the first range must start at batch size 1, not {entry[0]}")
            end = entry[1]
        self._firsts: IntArray = np.array([entry[0] for entry in ranges], dtype=np.int64)
        self._depths = [entry[2] for entry in ranges]
        self.max_depth = max(self._depths)

    def start(self, row: int, task: int) -> None:
        """Nothing is kept per row."""

    def finish(self, row: int) -> None:
        """Nothing is kept per row."""

    def choose(self, signals: BatchSignals) -> Choice:
        """See `Chooser.choose`."""
        place = int(np.searchsorted(self._firsts, signals.round_size, side="right")) - 1
        depths = np.minimum(signals.limits, self._depths[max(place, 0)])
        return Choice(depths, np.full(len(depths), Reason.FIXED, dtype=np.int64))

    def learn(self, record: RoundRecord) -> None:
        """A table learns nothing."""


class BatchTableSpec(Part):
    """`choose:` of a schedule by batch size."""

    algorithm: Literal["batch-table"]
    schedule: list[list[int]] = Field(
        min_length=1,
        max_length=256,
        description="[first batch size, last batch size, depth] ranges, as in num_speculative_tokens_per_batch_size.",
    )

    @field_validator("schedule")
    @classmethod
    def _is_a_schedule(cls, schedule: list[list[int]]) -> list[list[int]]:
        try:
            BatchTable(schedule)
        except ConfigError as error:
            raise ValueError(str(error)) from error
        return schedule

    def build(self, parts: Parts) -> Chooser:  # noqa: ARG002 - every spec is built alike
        """The chooser."""
        return BatchTable(self.schedule)

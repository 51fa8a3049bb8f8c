"""Depth by batch size, from a schedule in vLLM's format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import Field

from adaptspec.control.ceilings import BatchSchedule, Ranges
from adaptspec.control.choosers.chooser import Alike, Choice, Chooser, Parts
from adaptspec.control.language.schema import Part
from adaptspec.control.learned import check_nothing
from adaptspec.control.policy import BatchSignals
from adaptspec.types import FloatArray, Reason, RoundRecord


class BatchTable:
    """depth = K of the range [first, last] that the batch size falls in; see `BatchSchedule`.

    Regimes: right where acceptance is stable and only the load varies; blind to what is being written.
    Source: vLLM documentation, "Dynamic Speculative Decoding".
    """

    def __init__(self, schedule: Sequence[Sequence[int]]) -> None:
        """
        Raises:
            ConfigError: the ranges do not start at 1, overlap, or are no ranges.
        """
        self._schedule = BatchSchedule(schedule)
        self.max_depth = self._schedule.max_depth
        self._alike = Alike()

    def start(self, row: int) -> None:
        """Nothing is kept per row."""

    def finish(self, row: int) -> None:
        """Nothing is kept per row."""

    def choose(self, signals: BatchSignals) -> Choice:
        """See `Chooser.choose`."""
        return self._alike.choice(signals, self._schedule.depth(signals.round_size), Reason.FIXED)

    def learn(self, record: RoundRecord) -> None:
        """A table learns nothing."""

    def learned(self) -> dict[str, FloatArray]:
        """Nothing."""
        return {}

    def restore(self, learned: Mapping[str, FloatArray]) -> None:
        """See `Chooser.restore`."""
        check_nothing(learned)


class BatchTableSpec(Part):
    """`choose:` of a schedule by batch size."""

    algorithm: Literal["batch-table"]
    schedule: Ranges = Field(
        description="[first batch size, last batch size, depth] ranges, as in num_speculative_tokens_per_batch_size."
    )

    def build(self, parts: Parts) -> Chooser:  # noqa: ARG002 - every spec is built alike
        """The chooser."""
        return BatchTable(self.schedule)

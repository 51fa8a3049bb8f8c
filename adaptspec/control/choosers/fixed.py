"""Depths that do not follow what happens: always the same, or by batch size from a schedule in vLLM's format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from adaptspec.control.ceilings import BatchSchedule, Ranges
from adaptspec.control.choosers.chooser import Choice, Chooser, Parts, Plain
from adaptspec.control.language.schema import Part
from adaptspec.control.policy import BatchSignals
from adaptspec.types import Reason


class Static(Plain):
    """depth = k for every row, every round.

    Regimes: the right choice where traffic never changes and k was measured; the yardstick for all
    others. k = 0 is plain decoding.
    """

    def choose(self, signals: BatchSignals) -> Choice:
        """See `Chooser.choose`."""
        return self.alike(signals, self.max_depth, Reason.FIXED)


class BatchTable(Plain):
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
        super().__init__(self._schedule.max_depth)

    def choose(self, signals: BatchSignals) -> Choice:
        """See `Chooser.choose`."""
        return self.alike(signals, self._schedule.depth(signals.round_size), Reason.FIXED)


class StaticSpec(Part):
    """`choose:` of a fixed depth."""

    algorithm: Literal["static"]
    depth: int = Field(ge=0, le=64, description="Tokens drafted per request and round; 0 is plain decoding.")

    def build(self, parts: Parts) -> Chooser:  # noqa: ARG002 - every spec is built alike
        """The chooser."""
        return Static(self.depth)


class BatchTableSpec(Part):
    """`choose:` of a schedule by batch size."""

    algorithm: Literal["batch-table"]
    schedule: Ranges = Field(
        description="[first batch size, last batch size, depth] ranges, as in num_speculative_tokens_per_batch_size."
    )

    def build(self, parts: Parts) -> Chooser:  # noqa: ARG002 - every spec is built alike
        """The chooser."""
        return BatchTable(self.schedule)

"""Always the same depth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from adaptspec.control.choosers.chooser import Alike, Choice, Chooser, Parts
from adaptspec.control.language.schema import Part
from adaptspec.control.learned import check_nothing
from adaptspec.control.policy import BatchSignals
from adaptspec.types import FloatArray, Reason, RoundRecord


class Static:
    """depth = k for every row, every round.

    Regimes: the right choice where traffic never changes and k was measured; the yardstick for all
    others. k = 0 is plain decoding.
    """

    def __init__(self, depth: int) -> None:
        self.max_depth = depth
        self._alike = Alike()

    def start(self, row: int) -> None:
        """Nothing is kept per row."""

    def finish(self, row: int) -> None:
        """Nothing is kept per row."""

    def choose(self, signals: BatchSignals) -> Choice:
        """See `Chooser.choose`."""
        return self._alike.choice(signals, self.max_depth, Reason.FIXED)

    def learn(self, record: RoundRecord) -> None:
        """A fixed depth learns nothing."""

    def learned(self) -> dict[str, FloatArray]:
        """Nothing."""
        return {}

    def restore(self, learned: Mapping[str, FloatArray]) -> None:
        """See `Chooser.restore`."""
        check_nothing(learned)


class StaticSpec(Part):
    """`choose:` of a fixed depth."""

    algorithm: Literal["static"]
    depth: int = Field(ge=0, le=64, description="Tokens drafted per request and round; 0 is plain decoding.")

    def build(self, parts: Parts) -> Chooser:  # noqa: ARG002 - every spec is built alike
        """The chooser."""
        return Static(self.depth)

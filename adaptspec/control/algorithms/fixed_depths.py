"""One depth for all rows by a simple rule: always the same, by batch size, or up and down a ladder of depths."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator

from adaptspec.control.algorithms.algorithm import AlgorithmSpec, Choice, OneDepth, Parts, lowered
from adaptspec.control.language.schema import Part
from adaptspec.control.limits import Ranges, depth_at
from adaptspec.control.policy import BatchSignals
from adaptspec.decision import Reason
from adaptspec.rounds import RoundRecord


class Static(OneDepth):
    """depth = k for every row, every round.

    Regimes: traffic that never changes and for which k was measured. k = 0 is plain decoding. The baseline of the other
    algorithms.
    """

    def choose(self, signals: BatchSignals) -> Choice:
        return self.alike(signals, self.max_depth, Reason.FIXED)


class StaticSpec(AlgorithmSpec):
    """`choose:` of a fixed depth."""

    guarded: ClassVar[bool] = False  # a baseline runs at its depth

    algorithm: Literal["static"]
    depth: int = Field(ge=0, le=64, description="Tokens drafted per request and round; 0 is plain decoding.")

    def build(self, parts: Parts) -> Static:  # noqa: ARG002 - see `AlgorithmSpec`
        return Static(self.depth)

    def kept_to(self, depths: Sequence[int]) -> StaticSpec:
        return self.model_copy(update={"depth": lowered(self.depth, depths)})


class BatchTable(OneDepth):
    """depth = K of the range [first, last] that the batch size falls in.

    Regimes: stable acceptance, changing load. It does not react to acceptance.
    Source: vLLM documentation, "Dynamic Speculative Decoding".
    """

    def __init__(self, schedule: Ranges) -> None:
        super().__init__(max(depth for *_, depth in schedule))
        self._schedule = schedule

    def choose(self, signals: BatchSignals) -> Choice:
        return self.alike(signals, depth_at(self._schedule, signals.round_size), Reason.FIXED)


class BatchTableSpec(AlgorithmSpec):
    """`choose:` of a schedule by batch size."""

    algorithm: Literal["batch-table"]
    schedule: Ranges = Field(
        description="[first batch size, last batch size, depth] ranges, as in num_speculative_tokens_per_batch_size."
    )

    def build(self, parts: Parts) -> BatchTable:  # noqa: ARG002 - see `AlgorithmSpec`
        return BatchTable(self.schedule)

    def kept_to(self, depths: Sequence[int]) -> BatchTableSpec:
        schedule = [[first, last, lowered(depth, depths)] for first, last, depth in self.schedule]
        return self.model_copy(update={"schedule": schedule})


class LadderSpec(Part):
    """One ladder of tiers."""

    tiers: list[Annotated[int, Field(ge=0, le=64)]] = Field(
        min_length=1, max_length=16, description="Depths to climb, lowest first."
    )
    down_hysteresis: float = Field(default=0.0, description="Added to the mark for going down: below 0 stays longer.")
    up_hysteresis: float = Field(default=0.0, description="Added to the mark for going up: above 0 waits longer.")


# By first batch size, as SGLang ships them.
SHIPPED = {
    1: LadderSpec.model_validate({"tiers": [1, 3, 5, 7], "down-hysteresis": -0.25}),
    8: LadderSpec(tiers=[0, 1, 3]),
    32: LadderSpec(tiers=[0, 1]),
    64: LadderSpec(tiers=[0]),
}


class EmaTiersSpec(AlgorithmSpec):
    """`choose:` of the moving-average ladder. `ladders` are keyed by the first batch size they serve."""

    algorithm: Literal["ema-tiers"]
    alpha: float = Field(default=0.2, gt=0.0, le=1.0, description="Weight of the newest round.")
    warmup: int = Field(default=10, ge=0, description="Rounds before the first move.")
    interval: int = Field(default=5, ge=1, description="Rounds between moves.")
    start: int = Field(default=3, ge=0, description="The first tier, where a ladder has it.")
    ladders: dict[int, LadderSpec] | None = Field(default=None, description="Absent: as SGLang ships them.")

    @field_validator("ladders")
    @classmethod
    def _starts_at_one(cls, ladders: dict[int, LadderSpec] | None) -> dict[int, LadderSpec] | None:
        if ladders is not None and min(ladders, default=0) != 1:
            raise ValueError("the first ladder must be for batch size 1, so that every batch size has one")
        return ladders

    def build(self, parts: Parts) -> EmaTiers:  # noqa: ARG002 - see `AlgorithmSpec`
        return EmaTiers(self)

    def kept_to(self, depths: Sequence[int]) -> EmaTiersSpec:
        ladders = {
            first: ladder.model_copy(update={"tiers": sorted({lowered(tier, depths) for tier in ladder.tiers})})
            for first, ladder in (self.ladders or SHIPPED).items()
        }
        return self if ladders == (self.ladders or SHIPPED) else self.model_copy(update={"ladders": ladders})


class EmaTiers(OneDepth):
    """e <- (1 - alpha) e + alpha * (mean accepted of the round); every `interval` rounds after `warmup`:

    down while e <= below - 0.5 + down_hysteresis (below = 0: 0.5 + down_hysteresis), else up while
    e > tier - 0.5 + up_hysteresis. From tier 0 it always tries the next tier for one interval. A range of batch sizes
    has its own ladder and its own e, which starts at tier - 1. Nothing is kept across restarts: e forgets in a few
    rounds, a tier is found again in a dozen, and averages do not add.

    Regimes: follows acceptance where every tier above 0 pays. It knows no costs, so where off is right it spends half
    of its time on the lowest tier. Source: SGLang, adaptive speculative decoding (`adaptive_spec_params`).
    """

    def __init__(self, spec: EmaTiersSpec) -> None:
        ladders: Mapping[int, LadderSpec] = SHIPPED if spec.ladders is None else spec.ladders
        self._firsts = sorted(ladders)
        self._averages = [_Average(ladders[first], spec) for first in self._firsts]
        super().__init__(max(max(ladder.tiers) for ladder in ladders.values()))

    def choose(self, signals: BatchSignals) -> Choice:
        average = self._averages[max(0, bisect.bisect_right(self._firsts, signals.round_size) - 1)]
        choice = self.alike(signals, average.tier, Reason.POLICY if average.tier else Reason.OFF)
        return replace(choice, memo=average)

    def learn(self, record: RoundRecord, memo: object = None) -> None:
        """Count a round for the ladder that decided it; rounds decided without this algorithm are not counted."""
        if isinstance(memo, _Average):
            memo.update(float(record.accepted.mean()), drafted=record.drafting)


class _Average:
    """The moving average of one ladder, and its tier."""

    def __init__(self, ladder: LadderSpec, spec: EmaTiersSpec) -> None:
        self._ladder, self._spec = ladder, spec
        self._tiers = sorted(set(ladder.tiers))
        self._index = self._tiers.index(spec.start) if spec.start in self._tiers else len(self._tiers) // 2
        self._ema = float(self.tier - 1)
        self._rounds = 0

    @property
    def tier(self) -> int:
        return self._tiers[self._index]

    def update(self, accepted: float, *, drafted: bool) -> None:
        """A round accepted so many tokens per row."""
        if drafted:
            self._ema += self._spec.alpha * (accepted - self._ema)
        self._rounds += 1
        after = self._rounds - self._spec.warmup
        if after > 0 and after % self._spec.interval == 0:
            self._move()

    def _move(self) -> None:
        last = len(self._tiers) - 1
        if self.tier == 0:
            self._index = min(1, last)
            if self.tier and self._ema < 0:
                self._ema = float(self.tier - 1)
            return
        before = self._index
        while self._index and self._ema <= self._down_threshold():
            self._index -= 1
        if self._index == before:
            while self._index < last and self._ema > self.tier - 0.5 + self._ladder.up_hysteresis:
                self._index += 1

    def _down_threshold(self) -> float:
        below = self._tiers[self._index - 1]
        return (0.5 if below == 0 else below - 0.5) + self._ladder.down_hysteresis

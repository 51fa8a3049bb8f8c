"""A ladder of depths per batch size, climbed by a moving average of accepted tokens: SGLang's rule."""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, field_validator

from adaptspec.control.arrays import total
from adaptspec.control.choosers.chooser import Choice, Chooser, Parts, Plain
from adaptspec.control.language.schema import Part
from adaptspec.control.policy import BatchSignals
from adaptspec.errors import ConfigError
from adaptspec.types import Reason, RoundRecord


@dataclass(frozen=True)
class Ladder:
    """The tiers of one range of batch sizes, and how much beyond a threshold moves down or up."""

    tiers: tuple[int, ...]
    down_hysteresis: float = 0.0
    up_hysteresis: float = 0.0


# By first batch size, as SGLang ships them.
SHIPPED: Mapping[int, Ladder] = {
    1: Ladder((1, 3, 5, 7), down_hysteresis=-0.25),
    8: Ladder((0, 1, 3)),
    32: Ladder((0, 1)),
    64: Ladder((0,)),
}


class EmaTiers(Plain):
    """e <- (1 - alpha) e + alpha * (mean accepted of the round); every `interval` rounds after `warmup`:

    down while e <= below - 0.5 + down_hysteresis (below = 0: 0.5 + down_hysteresis), else up while
    e > tier - 0.5 + up_hysteresis. From tier 0 it always tries the next one up, for one interval.
    A range of batch sizes has its own ladder and its own e, which starts at tier - 1. Nothing is kept across restarts:
    e forgets in a few rounds, a tier is found again in a dozen, and averages do not add.

    Regimes: follows acceptance where every tier above 0 pays; knows no costs, so where off is right it spends half
    its time on the lowest tier. Source: SGLang, adaptive speculative decoding (`adaptive_spec_params`).
    """

    def __init__(
        self,
        ladders: Mapping[int, Ladder] = SHIPPED,
        alpha: float = 0.2,
        warmup: int = 10,
        interval: int = 5,
        start: int = 3,
    ) -> None:
        """`start` is the first tier where a ladder has it; its middle one otherwise.

        Raises:
            ConfigError: no ladder for batch size 1, or an empty one.
        """
        if min(ladders, default=0) != 1 or not all(ladder.tiers for ladder in ladders.values()):
            raise ConfigError("ema-tiers needs tiers for every batch size: the first ladder must start at 1")
        self._firsts = sorted(ladders)
        self._slots = [_Slot(ladders[first], alpha, warmup, interval, start) for first in self._firsts]
        super().__init__(max(max(ladder.tiers) for ladder in ladders.values()))

    def choose(self, signals: BatchSignals) -> Choice:
        """See `Chooser.choose`."""
        tier = self._slot(signals.round_size).tier
        return self.alike(signals, tier, Reason.POLICY if tier else Reason.OFF)

    def learn(self, record: RoundRecord) -> None:
        """See `Chooser.learn`."""
        rows = len(record.rows)
        if rows:
            self._slot(rows).update(total(record.accepted) / rows, record.drafting)

    def _slot(self, batch_size: int) -> _Slot:
        return self._slots[max(0, bisect.bisect_right(self._firsts, batch_size) - 1)]


class _Slot:
    """The state of one ladder."""

    def __init__(self, ladder: Ladder, alpha: float, warmup: int, interval: int, start: int) -> None:
        self._ladder = ladder
        self._tiers = sorted(set(ladder.tiers))
        self._alpha, self._warmup, self._interval = alpha, warmup, interval
        self._place = self._tiers.index(start) if start in self._tiers else len(self._tiers) // 2
        self._ema = float(self.tier - 1)
        self._rounds = 0

    @property
    def tier(self) -> int:
        return self._tiers[self._place]

    def update(self, accepted: float, drafted: bool) -> None:
        if drafted:
            self._ema += self._alpha * (accepted - self._ema)
        self._rounds += 1
        if self._rounds > self._warmup and (self._rounds - self._warmup) % self._interval == 0:
            self._move()

    def _move(self) -> None:
        if self.tier == 0:
            self._place = min(self._place + 1, len(self._tiers) - 1)
            if self.tier and self._ema < 0:
                self._ema = float(self.tier - 1)
            return
        before = self._place
        while self._place and self._ema <= self._down_threshold():
            self._place -= 1
        if self._place == before:
            while self._place < len(self._tiers) - 1 and self._ema > self.tier - 0.5 + self._ladder.up_hysteresis:
                self._place += 1

    def _down_threshold(self) -> float:
        below = self._tiers[self._place - 1]
        return (0.5 if below == 0 else below - 0.5) + self._ladder.down_hysteresis


Tier = Annotated[int, Field(ge=0, le=64)]


class LadderSpec(Part):
    """One ladder of tiers."""

    tiers: list[Tier] = Field(min_length=1, max_length=16, description="Depths to climb, lowest first.")
    down_hysteresis: float = Field(default=0.0, description="Added to the mark for going down: below 0 stays longer.")
    up_hysteresis: float = Field(default=0.0, description="Added to the mark for going up: above 0 waits longer.")


class EmaTiersSpec(Part):
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

    def build(self, parts: Parts) -> Chooser:  # noqa: ARG002 - every spec is built alike
        """The chooser."""
        ladders: Mapping[int, Ladder] = SHIPPED
        if self.ladders is not None:
            ladders = {
                first: Ladder(tuple(ladder.tiers), ladder.down_hysteresis, ladder.up_hysteresis)
                for first, ladder in self.ladders.items()
            }
        return EmaTiers(ladders, self.alpha, self.warmup, self.interval, self.start)

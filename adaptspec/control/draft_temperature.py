"""How a draft's distribution is sharpened or flattened before tokens are drawn, without loss, and how that is tuned."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field, field_validator

from adaptspec.control.language.schema import Part, Short
from adaptspec.control.policy import Learner
from adaptspec.decision_tables import CANDIDATES, ENTROPY_BINS, TemperatureTable, entropy_bins
from adaptspec.types import FloatArray, RoundRecord

_NEUTRAL = CANDIDATES.index(1.0)
_DISCOUNT = 0.999  # per scored token
_LEAST_SEEN = 16.0


class DraftTemperature(Learner):
    """Writes the temperature table of each round: by bins of entropy, on top of the request's own temperature."""

    def __init__(self, value: float = 1.0) -> None:
        self.by_bin: FloatArray = np.full(ENTROPY_BINS, value)

    def table(self, rows: int) -> TemperatureTable | None:
        """For a round of so many rows. None: tokens are drawn as they are."""
        return TemperatureTable(np.tile(self.by_bin, (rows, 1)))

    def learn(self, record: RoundRecord) -> None:
        """Take note of a round with `temperature_scores`. A fixed temperature learns nothing."""


class DynamicTemperature(DraftTemperature):
    """The candidate temperature of each entropy bin that would have been accepted most.

    Drafting from q' = softmax(log q / tau) is accepted with probability sum(min(p, q')) under `rejection`, and under
    methods that share the target's noise where argmax(log q / tau + noise) is the target's own token. Once p is
    known, at verification, every candidate tau can be scored on the very tokens that were drafted, so nothing has to
    be tried. Per bin of the draft's entropy, the best is the candidate with the largest

        mean gain over tau = 1, less one standard error of that mean,

    and 1 while no candidate's is positive; tau is best ** `gain`. Counts decay. Only every `score_every`-th round is
    scored, and few of its tokens. Regimes: earns most where draft and target differ in calibration (a small or
    distilled draft, a quantized target); nothing at temperature 0, where the argmax stays what it is.
    Source: AdaptSpec design; the objective is the acceptance of Leviathan et al. 2023, eq. 2.
    """

    def __init__(
        self, score_every: int = 8, least: float = CANDIDATES[0], most: float = CANDIDATES[-1], gain: float = 1.0
    ) -> None:
        """Candidates from `least` to `most`, which hold 1 between them."""
        super().__init__()
        self._score_every, self._gain = score_every, gain
        self._rounds, self._neutral, self._stale = 0, True, False
        self._seen: FloatArray = np.zeros((ENTROPY_BINS, 1))
        self._sums, self._squares = (np.zeros((ENTROPY_BINS, len(CANDIDATES))) for _ in range(2))
        self._candidates: FloatArray = np.array(CANDIDATES)
        self._inside = (self._candidates >= least) & (self._candidates <= most)

    def table(self, rows: int) -> TemperatureTable | None:
        """What was learned so far; every so many rounds one is scored. Others cost nothing while 1 is the best."""
        if self._stale:
            self._renew()
        scored = self._rounds % self._score_every == 0
        self._rounds += 1
        return None if self._neutral and not scored else TemperatureTable(np.tile(self.by_bin, (rows, 1)), scored)

    def learn(self, record: RoundRecord) -> None:
        scores = record.temperature_scores
        assert scores is not None, "only told of rounds that were scored"
        known = ~np.isnan(scores[:, :, _NEUTRAL])
        gains = scores[known] - scores[known][:, [_NEUTRAL]]
        bins = entropy_bins(record.entropy[known])
        fade = _DISCOUNT ** len(bins)
        for old, news in ((self._seen, np.ones((len(bins), 1))), (self._sums, gains), (self._squares, gains**2)):
            np.multiply(old, fade, out=old)
            np.add.at(old, bins, news)
        self._stale = True

    def state(self) -> dict[str, FloatArray]:
        """Decayed counts, sums and squares of gains, by bin of entropy."""
        self._stale = True
        return {"seen": self._seen, "gains": self._sums, "squares": self._squares}

    def _renew(self) -> None:
        seen = np.maximum(self._seen, 1.0)
        mean = self._sums / seen
        error = np.sqrt(np.maximum(self._squares / seen - mean**2, 0.0) / seen)
        surely = np.where((self._seen >= _LEAST_SEEN) & self._inside, mean - error, 0.0)
        surely[:, _NEUTRAL] = 0.0
        best = np.where(surely.max(axis=1) > 0.0, surely.argmax(axis=1), _NEUTRAL)
        self.by_bin = self._candidates[best] ** self._gain
        self._neutral, self._stale = bool((best == _NEUTRAL).all()), False


class FixedTemperatureSpec(Part):
    """Always the same."""

    mode: Literal["fixed"]
    value: float = Field(ge=0.1, le=4.0, description="Below 1 sharpens the draft's distribution, above 1 flattens it.")

    def build(self) -> DraftTemperature:
        return DraftTemperature(self.value)


class DynamicTemperatureSpec(Part):
    """By the entropy of each token's distribution, tuned to what is accepted."""

    mode: Literal["dynamic"]
    score_every: int = Field(default=8, ge=1, le=10_000, description="Rounds from one that is scored to the next.")
    range: list[float] = Field(
        default=[CANDIDATES[0], CANDIDATES[-1]],
        min_length=2,
        max_length=2,
        description="Least and most it may be; 1 lies between them.",
    )
    gain: float = Field(
        default=1.0, gt=0.0, le=1.0, description="How far it goes from 1 to what was accepted most: 1 all the way."
    )

    @field_validator("range")
    @classmethod
    def _holds_one(cls, ends: list[float]) -> list[float]:
        if not CANDIDATES[0] <= ends[0] <= 1.0 <= ends[1] <= CANDIDATES[-1]:
            raise ValueError(f"write [least, most] with {CANDIDATES[0]} <= least <= 1 <= most <= {CANDIDATES[-1]}")
        return ends

    def build(self) -> DraftTemperature:
        least, most = self.range
        return DynamicTemperature(self.score_every, least, most, self.gain)


DraftTemperatureSpec = Annotated[
    FixedTemperatureSpec | DynamicTemperatureSpec, Field(discriminator="mode"), Short("mode")
]

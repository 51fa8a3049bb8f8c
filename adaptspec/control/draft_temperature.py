"""How the draft's distribution is sharpened or flattened before a token is drawn from it, and how that is tuned.

Knows entropies and scores as numbers. Lossless: verification is told the distribution that was really drawn from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, Protocol

import numpy as np
from pydantic import Field

from adaptspec.control.learned import counts, sums
from adaptspec.control.policy import RoundTemperature
from adaptspec.control.schema import Part
from adaptspec.types import FloatArray, IntArray

CANDIDATES = (0.5, 0.65, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5)
_NEUTRAL = CANDIDATES.index(1.0)
_EDGES = (0.1, 0.3, 0.6, 1.0, 1.5, 2.2, 3.0)  # nats
_DISCOUNT = 0.999  # per scored token
_LEAST_SEEN = 16.0


class DraftTemperature(Protocol):
    """Makes the temperature of each round."""

    def begin(self) -> RoundTemperature:
        """What holds in the coming round."""


class FixedTemperature:
    """The same temperature for every token, on top of the request's own."""

    scored = False

    def __init__(self, value: float) -> None:
        self._value = value

    def begin(self) -> RoundTemperature:
        """The same every round."""
        return self

    def __call__(self, index: IntArray, entropy: FloatArray) -> FloatArray:  # noqa: ARG002 - the protocol's signature
        """See `RoundTemperature`."""
        return np.full(len(index), self._value)

    def observe(self, index: IntArray, entropy: FloatArray, scores: FloatArray) -> None:
        """A fixed temperature learns nothing."""


class DynamicTemperature:
    """The candidate temperature of each entropy bin that would have been accepted most.

    Drafting from q' = softmax(log q / tau) is accepted with probability sum(min(p, q')) under `rejection`, and under
    methods that share the target's noise where argmax(log q / tau + noise) is the target's own token. Once p is
    known, at verification, every candidate tau can be scored on the very tokens that were drafted, so nothing has to
    be tried. Per bin of the draft's entropy, tau is the candidate with the largest

        mean gain over tau = 1, less one standard error of that mean,

    and 1 while no candidate's is positive. Counts decay. Only every `score_every`-th round is scored, and few of its
    tokens. Regimes: earns most where draft and target differ in calibration (a small or distilled draft, a quantized
    target); nothing at temperature 0, where the argmax stays what it is.
    Source: AdaptSpec design; the objective is the acceptance of Leviathan et al. 2023, eq. 2.
    """

    def __init__(self, score_every: int = 8) -> None:
        bins = len(_EDGES) + 1
        self._score_every = score_every
        self._rounds = 0
        self._seen: FloatArray = np.zeros((bins, 1))
        self._sums: FloatArray = np.zeros((bins, len(CANDIDATES)))
        self._squares: FloatArray = np.zeros((bins, len(CANDIDATES)))
        self._candidates: FloatArray = np.array(CANDIDATES)
        self._edges: FloatArray = np.array(_EDGES)
        self._stale = False
        self.scored = False
        self.by_bin: FloatArray = np.ones(bins)

    def begin(self) -> RoundTemperature:
        """The table as learned so far; every so many rounds one is scored."""
        self.scored = self._rounds % self._score_every == 0
        self._rounds += 1
        if self._stale:
            self.by_bin = self._best()
            self._stale = False
        return self

    def __call__(self, index: IntArray, entropy: FloatArray) -> FloatArray:  # noqa: ARG002 - the protocol's signature
        """See `RoundTemperature`."""
        return self.by_bin[self._edges.searchsorted(entropy)]

    def observe(self, index: IntArray, entropy: FloatArray, scores: FloatArray) -> None:  # noqa: ARG002
        """See `RoundTemperature`."""
        gains = scores - scores[:, [_NEUTRAL]]
        bins = self._edges.searchsorted(entropy)
        fade = _DISCOUNT ** len(bins)
        for known, news in ((self._seen, np.ones((len(bins), 1))), (self._sums, gains), (self._squares, gains**2)):
            np.multiply(known, fade, out=known)
            np.add.at(known, bins, news)
        self._stale = True

    def learned(self) -> dict[str, FloatArray]:
        """Decayed counts, sums and squares of gains, by bin of entropy."""
        return {"seen": self._seen.copy(), "gains": self._sums.copy(), "squares": self._squares.copy()}

    def restore(self, learned: Mapping[str, FloatArray]) -> None:
        """See `Chooser.restore`."""
        seen, squares = counts(learned, "seen", self._seen.shape), counts(learned, "squares", self._squares.shape)
        self._sums = sums(learned, "gains", self._sums.shape)
        self._seen, self._squares, self._stale = seen, squares, True

    def _best(self) -> FloatArray:
        seen = np.maximum(self._seen, 1.0)
        mean = self._sums / seen
        error = np.sqrt(np.maximum(self._squares / seen - mean**2, 0.0) / seen)
        surely = np.where(self._seen >= _LEAST_SEEN, mean - error, 0.0)
        surely[:, _NEUTRAL] = 0.0
        best = np.where(surely.max(axis=1) > 0.0, surely.argmax(axis=1), _NEUTRAL)
        return np.asarray(self._candidates[best], dtype=np.float64)


class SplitTemperature:
    """Several temperatures in one round, each for its own rows; rows of a part without one are drafted as they are."""

    def __init__(self, parts: Sequence[tuple[IntArray, RoundTemperature | None]], rows: int) -> None:
        """`parts`: positions in the batch, and what holds for them."""
        self._parts = [part for _, part in parts]
        self._owner: IntArray = np.full(rows, -1, dtype=np.int64)
        for number, (positions, _) in enumerate(parts):
            self._owner[positions] = number
        self.scored = any(part is not None and part.scored for part in self._parts)

    def __call__(self, index: IntArray, entropy: FloatArray) -> FloatArray:
        """See `RoundTemperature`."""
        result: FloatArray = np.ones(len(index))
        for part, mine in self._lanes(index):
            result[mine] = part(index[mine], entropy[mine])
        return result

    def observe(self, index: IntArray, entropy: FloatArray, scores: FloatArray) -> None:
        """See `RoundTemperature`."""
        for part, mine in self._lanes(index):
            part.observe(index[mine], entropy[mine], scores[mine])

    def _lanes(self, index: IntArray) -> list[tuple[RoundTemperature, IntArray]]:
        owners = self._owner[index]
        lanes = [(part, np.flatnonzero(owners == number)) for number, part in enumerate(self._parts)]
        return [(part, mine) for part, mine in lanes if part is not None and len(mine)]


class FixedTemperatureSpec(Part):
    """Always the same."""

    mode: Literal["fixed"]
    value: float = Field(ge=0.1, le=4.0, description="Below 1 sharpens the draft's distribution, above 1 flattens it.")

    def build(self) -> DraftTemperature:
        """The temperature."""
        return FixedTemperature(self.value)


class DynamicTemperatureSpec(Part):
    """By the entropy of each token's distribution, tuned to what is accepted."""

    mode: Literal["dynamic"]
    score_every: int = Field(default=8, ge=1, le=10_000, description="Rounds from one that is scored to the next.")

    def build(self) -> DraftTemperature:
        """The temperature."""
        return DynamicTemperature(self.score_every)


DraftTemperatureSpec = Annotated[FixedTemperatureSpec | DynamicTemperatureSpec, Field(discriminator="mode")]

"""Estimates from measured rounds how long rounds take, with errors.

It is independent of the policy's cost table, so an error of that table cannot confirm itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from adaptspec.arrays import BoolArray, FloatArray

# Drafted tokens per row between which seconds are taken to follow a line.
KNOTS = (0.0, 1.0, 3.0, 7.0, 15.0)
_FADE_SECONDS = 60.0  # of rounds: what was measured so long ago counts 1/e
_SPEED_SECONDS = 1.0  # of rounds: so quickly a change of the machine's speed is followed
_DEVIATION = math.log(1.5)  # from what is usual: beyond it, the machine paused or changes its speed
_NEAR = 0.2  # a round that deviates less is used to price drafts: while the speed changes, others would mislead
_FIRST_ROUNDS = 100  # of a kind: their mean is what is usual for it; later ones show the machine's speed
_CONTRADICTIONS = 5  # deviations of one kind in a row, while other kinds do not deviate: what was learned is wrong
_LEAST_SECONDS = 1e-7  # of a round: logarithms need a time above 0
_RIDGE = 1e-4  # weight of the prior "costs nothing" where no round gives evidence
_BEGUN = 3  # features of the whole round: itself, more rows, tokens of side nodes
_LEAST_NOISE = 0.02  # of a round: clocks and models are not more precise
_MODEL_ERROR = 0.05  # of each part's seconds: rounds are not exactly a sum of their features


@dataclass
class _Kind:
    """Rounds that draft alike: the mean logarithm of what they take at the machine's first speed, in units."""

    mean: float
    rounds: int = 0
    contradictions: int = 0


class RoundSeconds:
    """Seconds that rounds of one batch bucket take, by what they did; old rounds fade with the time since.

    Least squares over measured rounds: seconds = machine's seconds per unit of work x (plain round + what drafts add).
    What drafts add is piecewise linear in the tokens that each drafter drafts per row; steps beyond those of an even
    batch, tokens read to catch up, tokens of side branches and more rows than the fewest have prices of their own.

    The machine's speed is followed by comparing each round with earlier rounds of the same kind (about as many rows,
    and the same number of tokens per row from each drafter). It is divided out before the fit, so a clock that changes
    does not make drafts look cheaper or more expensive than they are when only one kind ran before the change.
    """

    def __init__(self, drafters: int) -> None:
        self.width = _BEGUN + (len(KNOTS) + 2) * drafters
        self._forget()

    def _forget(self) -> None:
        self._matrix: FloatArray = np.zeros((self.width, self.width))
        self._sums: FloatArray = np.zeros(self.width)
        self._squares = 0.0
        self._unit = 0.0  # seconds of a typical round
        self._rounds = 0.0
        self.plain = 0.0  # rounds among them that drafted nothing
        self._weights: FloatArray = np.zeros(self.width)
        self._covariance: FloatArray = np.zeros((self.width, self.width))
        self._speed = 0.0  # logarithm of the seconds that work takes now, over those in the first rounds
        self._kinds: dict[tuple[int, ...], _Kind] = {}
        self._last_usual = False

    def seconds(self, work: FloatArray) -> float:
        """Predicted seconds of `work`, a sum of `features` [F], at the machine's present speed."""
        return self._unit * math.exp(self._speed) * float(work @ self._weights)

    def ratio(self, work: FloatArray, ran: FloatArray) -> tuple[float, float]:
        """Predicted seconds of `work` over those of `ran`, both sums of `features` [F]; and twice its standard error.

        The error is infinite where `ran` has no price yet. Equal work gives exactly 1, without error.
        """
        seconds = float(ran @ self._weights)
        if seconds <= 0.0:
            return 1.0, math.inf
        value = float(work @ self._weights) / seconds
        slope = (work - value * ran) / seconds
        variance = max(float(slope @ self._covariance @ slope), 0.0)
        return value, 2.0 * variance**0.5 + _MODEL_ERROR * float(np.abs(slope * self._weights).sum())

    def add(self, work: FloatArray, seconds: FloatArray) -> None:
        """Learn from rounds in order: `features` [R, F] and measured seconds [R]."""
        if not self._unit:
            self._unit = max(float(np.median(seconds)), _LEAST_SECONDS)
        took, usual = self._at_one_speed(work, seconds)
        if any(kind.contradictions >= _CONTRADICTIONS for kind in self._kinds.values()):
            self._forget()
            return
        kept = math.exp(-float(seconds.sum()) / _FADE_SECONDS)
        self.plain = kept * self.plain + float(np.count_nonzero(~drafted_in(work)))
        work, took = work[usual], took[usual]
        self._matrix = kept * self._matrix + work.T @ work
        self._sums = kept * self._sums + work.T @ took
        self._squares = kept * self._squares + float(took @ took)
        self._rounds = kept * self._rounds + len(took)
        self._solve()

    def _at_one_speed(self, work: FloatArray, seconds: FloatArray) -> tuple[FloatArray, BoolArray]:
        """Seconds of rounds [R] at the machine's first speed, in units; and which are close to their kind's mean."""
        blocks = work[:, _BEGUN:].reshape(len(work), -1, len(KNOTS) + 2)
        tokens = np.ceil(blocks[:, :, : len(KNOTS)] @ np.array(KNOTS))
        keys = np.column_stack([np.rint(4 * work[:, 1]), np.ceil(work[:, 2]), tokens]).astype(np.int64)
        catching_up = np.count_nonzero(blocks[:, :, -1], axis=1)
        took: FloatArray = np.empty(len(work))
        usual = np.ones(len(work), dtype=np.bool_)
        for i, (key, one) in enumerate(zip(keys.tolist(), seconds.tolist(), strict=True)):
            log = math.log(max(one, _LEAST_SECONDS) / self._unit)
            if not catching_up[i]:
                usual[i] = self._follow(tuple(key), log)
            took[i] = math.exp(log - self._speed)
        return took, usual

    def _follow(self, key: tuple[int, ...], log: float) -> bool:
        """Split a round's deviation between the machine's speed and what its kind takes; False: too large a deviation.

        Then the machine paused, or its speed is changing, and the round shows nothing of what drafts cost.
        """
        kind = self._kinds.setdefault(key, _Kind(log - self._speed))
        deviation = log - kind.mean - self._speed
        usual = abs(deviation) < _DEVIATION
        # A change of the machine's speed shows in all kinds of rounds.
        kind.contradictions = 0 if usual else kind.contradictions + self._last_usual
        self._last_usual = usual
        step = min(max(deviation, -_DEVIATION), _DEVIATION)
        # By expected seconds: with the measured ones, slow rounds would count more, and the speed would drift.
        seconds = self._unit * math.exp(kind.mean + self._speed)
        self._speed += (1.0 - math.exp(-seconds / _SPEED_SECONDS)) * step
        kind.rounds += 1
        settled = kind.rounds > _FIRST_ROUNDS
        kind.mean += (1.0 - math.exp(-seconds / _FADE_SECONDS) if settled else 1.0 / kind.rounds) * step
        return abs(deviation) < _NEAR

    def _solve(self) -> None:
        inverse: FloatArray = np.linalg.inv(self._matrix + _RIDGE * np.eye(self.width)).astype(np.float64)
        self._weights = np.asarray(inverse @ self._sums, dtype=np.float64)
        freedom = self._rounds - float(np.trace(inverse @ self._matrix))
        left = max(0.0, self._squares - float(self._weights @ self._sums))
        least = _LEAST_NOISE * float(self._sums[0]) / max(self._rounds, 1.0)
        self._covariance = inverse * max(left / max(freedom, 1.0), least**2)


def drafted_in(work: FloatArray) -> BoolArray:
    """Which of some rounds [R] drafted or caught up, by their `features` [R, F]."""
    return np.asarray(work[:, 2:].any(axis=1), dtype=np.bool_)


def features(
    more_rows: float, drafted: FloatArray, steps: FloatArray, read: FloatArray, side_tokens: FloatArray | float = 0.0
) -> FloatArray:
    """What rounds of one batch size did [..., F]: by drafter [..., N] tokens drafted per row, steps, and tokens read.

    `more_rows` is what the batch has beyond the smallest of its bucket, over that; `side_tokens` [...] are tokens per
    row that branched off.
    """
    knots = np.array(KNOTS)
    at = np.clip(np.searchsorted(knots, drafted, side="right") - 1, 0, len(KNOTS) - 2)
    part = (drafted - knots[at]) / (knots[at + 1] - knots[at])
    each = np.zeros((*drafted.shape, len(KNOTS) + 2))
    np.put_along_axis(each, at[..., None], np.where(drafted > 0, 1.0 - part, 0.0)[..., None], -1)
    np.put_along_axis(each, at[..., None] + 1, np.where(drafted > 0, part, 0.0)[..., None], -1)
    each[..., -2], each[..., -1] = np.maximum(steps - drafted, 0.0), read
    begun = np.ones((*drafted.shape[:-1], _BEGUN))
    begun[..., 1], begun[..., 2] = more_rows, side_tokens
    return np.concatenate([begun, each.reshape(*drafted.shape[:-1], -1)], axis=-1)

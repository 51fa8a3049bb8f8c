"""What rounds take, by what they did, as far as rounds that were run tell: estimates with errors of their own.

It knows no cost table on purpose: what decided must not be its own judge.
"""

from __future__ import annotations

import numpy as np

from adaptspec.types import FloatArray

# Drafted tokens per row between which seconds are taken to follow a line.
KNOTS = (0.0, 1.0, 3.0, 7.0, 15.0)
_FADE = 0.9995  # per round: about the last two thousand count
_STALL = 3.0  # times what is expected: beyond it the machine was elsewhere
_TELLING = 16  # rounds before stalls can be told from others
_RIDGE = 1e-4  # looks that speak for "no seconds at all" where nothing else does
_BEGUN = 3  # features of the whole round: itself, more rows, tokens beside chains
_LEAST_NOISE = 0.02  # of a round: clocks and models are no better


class RoundSeconds:
    """Least squares over rounds of one batch bucket, old ones fading: seconds = plain round + what drafts add.

    What drafts add is piecewise linear in the tokens that each drafter drafts per row; steps beyond those of an even
    batch, tokens read to catch up, tokens beside the main chains and more rows than the fewest have prices of their
    own. What was never run stays unknown: its error is as large as a round.
    """

    def __init__(self, drafters: int) -> None:
        self.width = _BEGUN + (len(KNOTS) + 2) * drafters
        self._matrix: FloatArray = np.zeros((self.width, self.width))
        self._sums: FloatArray = np.zeros(self.width)
        self._squares = 0.0
        self._unit = 0.0  # seconds that all is counted in
        self._rounds = 0.0
        self.plain = 0.0  # rounds among them that drafted nothing
        self._weights: FloatArray = np.zeros(self.width)
        self._covariance: FloatArray = np.zeros((self.width, self.width))

    def seconds(self, work: FloatArray) -> tuple[float, float]:
        """Of some work (a sum of `features`): seconds, and twice their standard error."""
        variance = float(work @ self._covariance @ work)
        return self._unit * float(work @ self._weights), 2.0 * self._unit * max(variance, 0.0) ** 0.5

    def add(self, work: FloatArray, seconds: FloatArray) -> FloatArray:
        """Learn from rounds: `features` [R, F] and seconds [R]. What of each [R] was the machine's hesitating."""
        if not self._unit:
            self._unit = float(np.median(seconds))
        took = seconds / self._unit
        expected = work @ self._weights if self._rounds >= _TELLING else np.full(len(took), np.median(took))
        usual = np.minimum(took, _STALL * np.maximum(expected, 0.1))
        kept = _FADE ** len(took)
        self._matrix = kept * self._matrix + work.T @ work
        self._sums = kept * self._sums + work.T @ usual
        self._squares = kept * self._squares + float(usual @ usual)
        self._rounds = kept * self._rounds + len(took)
        self.plain = kept * self.plain + float(np.count_nonzero(~work[:, 2:].any(axis=1)))
        self._solve()
        return np.asarray(self._unit * (took - usual), dtype=np.float64)

    def _solve(self) -> None:
        inverse: FloatArray = np.linalg.inv(self._matrix + _RIDGE * np.eye(self.width)).astype(np.float64)
        self._weights = np.asarray(inverse @ self._sums, dtype=np.float64)
        freedom = self._rounds - float(np.trace(inverse @ self._matrix))
        left = max(0.0, self._squares - float(self._weights @ self._sums))
        least = _LEAST_NOISE * float(self._sums[0]) / max(self._rounds, 1.0)
        self._covariance = inverse * max(left / max(freedom, 1.0), least**2)


def features(
    more_rows: float, drafted: FloatArray, steps: FloatArray, read: FloatArray, beside: FloatArray | float = 0.0
) -> FloatArray:
    """What rounds of one batch size did [..., F]: by drafter [..., N] tokens drafted per row, steps, and tokens read.

    `more_rows` is what the batch has beyond the smallest of its bucket, over that; `beside` [...] are tokens per row
    that branched off.
    """
    knots = np.array(KNOTS)
    at = np.clip(np.searchsorted(knots, drafted, side="right") - 1, 0, len(KNOTS) - 2)
    part = (drafted - knots[at]) / (knots[at + 1] - knots[at])
    each = np.zeros((*drafted.shape, len(KNOTS) + 2))
    np.put_along_axis(each, at[..., None], np.where(drafted > 0, 1.0 - part, 0.0)[..., None], -1)
    np.put_along_axis(each, at[..., None] + 1, np.where(drafted > 0, part, 0.0)[..., None], -1)
    each[..., -2], each[..., -1] = np.maximum(steps - drafted, 0.0), read
    begun = np.ones((*drafted.shape[:-1], _BEGUN))
    begun[..., 1], begun[..., 2] = more_rows, beside
    return np.concatenate([begun, each.reshape(*drafted.shape[:-1], -1)], axis=-1)

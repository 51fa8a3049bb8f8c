"""Ratios measured on several groups of prompts, with intervals by bootstrap over the groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtri, stdtrit

from adaptspec.arrays import FloatArray

_DRAWS = 2000


@dataclass(frozen=True)
class Ratio:
    """A geometric mean over groups, and its interval; None: one group has none.

    `differs`: the interval does not contain 1.
    """

    mean: float
    low: float | None
    high: float | None

    @classmethod
    def of_groups(cls, ratios: FloatArray, error: float = 0.05) -> Ratio:
        """Of one ratio per group [G]: the interval misses the mean over all such groups with probability `error`.

        A bootstrap over few groups is too narrow, so it is widened as Student's t widens the normal distribution.
        """
        logs, last = np.log(ratios), len(ratios) - 1
        mean = logs.mean()
        if not last:
            return cls(float(np.exp(mean)), None, None)
        drawn = np.random.default_rng(0).integers(0, len(logs), (_DRAWS, len(logs)))
        ends = np.quantile(logs[drawn].mean(axis=1), [error / 2, 1.0 - error / 2])
        wider = stdtrit(last, 1.0 - error / 2) / ndtri(1.0 - error / 2) * np.sqrt(len(logs) / last)
        low, high = np.exp(mean + wider * (ends - mean)).tolist()
        return cls(float(np.exp(mean)), low, high)

    @property
    def differs(self) -> bool:
        return self.low is not None and self.high is not None and (self.low > 1.0 or self.high < 1.0)

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.mean:.2f}"
        return f"{self.mean:.2f} ({self.low:.2f} to {self.high:.2f})"

    def to_json(self) -> dict[str, Any]:
        return {"mean": self.mean, "low": self.low, "high": self.high}

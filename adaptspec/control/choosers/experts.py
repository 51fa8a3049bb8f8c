"""Weights over experts that all learn from every round: Hedge, with the fixed share that follows shifts.

Knows gains; it does not know what the experts are or who draws among them.
"""

from __future__ import annotations

import math

import numpy as np

from adaptspec.types import FloatArray, IntArray


class FixedShare:
    """w <- w * exp(rate * gain), then w <- (1 - share) w + share / K, for K experts in each of several groups.

    Regret against the best sequence of experts with m changes in T rounds is O((m + 1) log(K T) / rate + rate T) for
    gains in a range of 1: `share` near m / T keeps every expert within reach, about log(1 / share) / rate rounds of
    full advantage away. Sources: Freund & Schapire 1997 (Hedge); Herbster & Warmuth 1998 (fixed share).
    """

    def __init__(self, groups: int, experts: int, rate: float, share: float) -> None:
        self._rate = rate
        self._share = share
        self._logs: FloatArray = np.full((groups, experts), -np.log(experts))

    def weights(self, groups: IntArray) -> FloatArray:
        """[N, K], each row sums to 1."""
        weights: FloatArray = np.exp(self._logs[groups])
        return weights

    def weight(self, group: int, expert: int) -> float:
        """One of `weights`, quicker."""
        return math.exp(self._logs.item(group, expert))

    def start(self, group: int, weights: FloatArray) -> None:
        """Begin with these weights [K], each above 0."""
        self._logs[group] = np.log(weights / weights.sum())

    def gain(self, groups: IntArray, gains: FloatArray, rounds: FloatArray) -> None:
        """Different `groups` [N] have gained this much [N, K] in so many rounds [N]: sums over these."""
        logs = self._logs[groups] + self._rate * gains
        weights = np.exp(logs - logs.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        mixed = 1.0 - (1.0 - self._share) ** rounds[:, None]
        self._logs[groups] = np.log((1.0 - mixed) * weights + mixed / weights.shape[1])

    def learned(self) -> FloatArray:
        """Evidence [groups, K]: log weights around 0. Evidence of two replicas adds."""
        evidence: FloatArray = self._logs - self._logs.mean(axis=1, keepdims=True)
        return evidence

    def restore(self, evidence: FloatArray) -> None:
        """Go on from it. However much came together, no expert falls out of reach."""
        weights = np.exp(evidence - evidence.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        self._logs = np.log((1.0 - self._share) * weights + self._share / weights.shape[1])

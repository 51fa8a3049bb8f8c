"""A bandit in a package of its own: the depth of the highest mean tokens per second, a random depth now and then."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from adaptspec.arrays import FloatArray, IntArray
from adaptspec.control.algorithms.algorithm import AlgorithmSpec, Choice, OneDepth, Parts
from adaptspec.control.policy import BatchSignals
from adaptspec.decision import Reason
from adaptspec.rounds import RoundRecord

_SMOOTHING = 0.05  # weight of the newest round in the moving average of tokens per second
_DROP, _MAX_LOW, _COOLDOWN = 0.3, 30, 50  # share below the average; rounds in a row until a reset; rounds after one


class EpsilonGreedy(OneDepth):
    """With probability `epsilon` a depth at random, else argmax of mean(tokens / seconds) over the rounds at a depth.

    After 30 rounds in a row that are 30 % slower than the moving average, all means are reset. The outcome of a round
    counts for its batch as a whole: the depth is the same for all rows. Nothing is kept across restarts.

    Source: `--spec-autotune` of ik_llama.cpp (pull request 1595), for the depth alone.
    """

    def __init__(self, depths: tuple[int, ...], epsilon: float, seed: int) -> None:
        super().__init__(max(depths, default=0))
        self._depths = depths or (0,)
        self._epsilon, self._rng = epsilon, np.random.default_rng(seed)
        self._reset()

    def _reset(self, cooldown: int = 0) -> None:
        self._rounds: IntArray = np.zeros(len(self._depths), dtype=np.int64)
        self._means: FloatArray = np.zeros(len(self._depths))  # tokens per second; 0: not tried
        self._average, self._low, self._cooldown = 0.0, 0, cooldown

    def choose(self, signals: BatchSignals) -> Choice:
        """One depth for all rows of the coming round, in each row at most its limit."""
        exploring = self._rng.random() < self._epsilon
        arm = int(self._rng.integers(len(self._depths)) if exploring else self._means.argmax())
        choice = self.alike(signals, self._depths[arm], Reason.EXPLORE if exploring else Reason.POLICY)
        return replace(choice, memo=arm)  # comes back with the record of the round

    def learn(self, record: RoundRecord, memo: object = None) -> None:
        """Credit a round to the depth that it was decided with. Rounds that also read prompts are not comparable."""
        if not isinstance(memo, int) or record.prefill_tokens:
            return
        arm = memo
        speed = float(record.emitted.sum()) / record.timing.total
        self._rounds[arm] += 1
        self._means[arm] += (speed - self._means[arm]) / self._rounds[arm]
        slow = not self._cooldown and speed < (1.0 - _DROP) * self._average
        self._cooldown = max(0, self._cooldown - 1)
        self._low = self._low + 1 if slow else 0
        self._average += (_SMOOTHING if self._average else 1.0) * (speed - self._average)
        if self._low >= _MAX_LOW:
            self._reset(cooldown=_COOLDOWN)


class EpsilonGreedySpec(AlgorithmSpec):
    """`choose: {algorithm: epsilon-greedy}`. The entry point in pyproject.toml names this class."""

    takes_tiers: ClassVar[bool] = True  # a policy may also give tiers or max-depth

    algorithm: Literal["epsilon-greedy"]
    epsilon: float = Field(default=0.15, ge=0.0, le=1.0, description="Share of rounds with a random depth.")
    seed: int = Field(default=0, ge=0, description="Of the random draws.")

    def build(self, parts: Parts) -> EpsilonGreedy:
        """The algorithm, once for each policy that names it."""
        return EpsilonGreedy(parts.tiers, self.epsilon, self.seed)

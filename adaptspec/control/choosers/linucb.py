"""LinUCB: goodput of each arm as a linear function of what the moment looks like."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import numpy as np
from pydantic import Field

from adaptspec.control.bandits.arms import Arms
from adaptspec.control.bandits.contexts import Scope
from adaptspec.control.bandits.estimates import bounded
from adaptspec.control.bandits.features import OF_TASKS, OTHERS
from adaptspec.control.bandits.learner import Learner, Pick, View, settle
from adaptspec.control.bandits.ledger import EARNED, SPENT, Lot
from adaptspec.control.bandits.spec import BanditSpec
from adaptspec.control.choosers.chooser import Parts
from adaptspec.control.learned import sums
from adaptspec.types import BoolArray, FloatArray

# What is left of the sums when all contexts are surprised.
_KEPT = 0.2


class LinUcb:
    """argmax over arms of  x . theta_a + optimism * s_a * sqrt(w_a - w_best),

        theta_a = A_a^-1 b_a,    w_a = x . A_a^-1 x,
        A_a = ridge * I + sum(spent x x^T),    b_a = ridge * h_a x_task + sum(earned x),

    over fading rounds that told of arm a. Weighing each round by what it spent makes x . theta a ratio of sums: with a
    constant x it is exactly sum(earned) / sum(spent). x holds the task (one-hot), log2 of the batch size, the entropy
    of the last drafted token, log2 of the context length and of the tokens emitted so far. Off is 1 whatever x is. h_a
    is the ratio believed before the arm is seen, s_a the deviation of one round's. Subtracting the best known arm's
    width is as in `Ucb`: what arms were seen in together is no reason to explore.

    Regimes: mixed traffic in which the moment says which arm pays: it shares among tasks, batch sizes and requests what
    a table per context would have to learn anew for each. Misled where goodput is far from linear in x.
    Deterministic: propensities are 1.
    Source: Li et al. 2010, "A Contextual-Bandit Approach to Personalized News Article Recommendation" (disjoint).
    """

    uses_features = True

    def __init__(
        self,
        arms: Arms,
        tasks: int,
        *,
        optimism: float = 1.5,
        ridge: float = 3.0,
        discount: float = 0.993,
        margin: float = 0.01,
    ) -> None:
        self._arms, self._tasks = arms, tasks
        self._optimism, self._ridge, self._discount, self._margin = optimism, ridge, discount, margin
        size = tasks + OTHERS
        self._a: FloatArray = np.zeros((len(arms), size, size))
        self._b: FloatArray = np.zeros((len(arms), size))
        self._inverse: FloatArray | None = None

    def start(self, context: int) -> None:
        """Nothing is kept per context."""

    def observe(self, lot: Lot, features: FloatArray, surprising: BoolArray) -> None:
        """See `Learner.observe`."""
        fade = self._discount ** float(lot.rounds.max()) * (1.0 - (1.0 - _KEPT) * surprising.mean())
        spent, earned = lot.sums[..., SPENT].T, lot.sums[..., EARNED].T  # [K, G]
        self._a = self._a * fade + (spent[:, None] * features.T) @ features
        self._b = self._b * fade + earned @ features
        self._inverse = None

    def pick(self, view: View) -> Pick:
        """See `Learner.pick`."""
        x = view.features
        at = np.matmul(x, self._inverted())  # [K, m, F]
        width = np.maximum((at * x).sum(axis=-1), 0.0).T
        later = view.costs / (view.costs + view.entry)
        believed = self._ridge * at[..., : self._tasks].sum(axis=-1).T * view.estimates.ratio / later
        value = later * (np.matmul(at, self._b[..., None])[..., 0].T + believed)
        if self._arms.off is not None:
            value[:, self._arms.off], width[:, self._arms.off] = 1.0, 0.0
        view = replace(view, estimates=replace(view.estimates, ratio=value))
        missing = np.maximum(width - width[np.arange(len(x)), view.best_known][:, None], 0.0)
        scores = value + self._optimism * view.estimates.spread * np.sqrt(missing)
        scores = bounded(scores, view.estimates.seen, self._arms, view.costs)
        arms, exploring = settle(scores, view, self._margin)
        return Pick(arms, np.ones(len(arms)), exploring)

    def learned(self) -> dict[str, FloatArray]:
        """Both sums, without ridge and prior."""
        return {"a": self._a.copy(), "b": self._b.copy()}

    def restore(self, learned: Mapping[str, FloatArray]) -> None:
        """See `Chooser.restore`."""
        a, b = sums(learned, "a", self._a.shape), sums(learned, "b", self._b.shape)
        self._a, self._b, self._inverse = a, b, None

    def _inverted(self) -> FloatArray:
        """[K, F, F]"""
        if self._inverse is None:
            whole = self._a + self._ridge * np.eye(self._a.shape[1])
            self._inverse = np.asarray(np.linalg.inv(whole), dtype=np.float64)
        return self._inverse


class LinUcbSpec(BanditSpec):
    """`choose:` of LinUCB."""

    algorithm: Literal["linucb"]
    scope: Scope = Field(default="request", description="Whose features an arm is chosen by.")
    optimism: float = Field(default=1.5, ge=0.0, le=10.0, description="How much uncertainty counts in an arm's favour.")
    ridge: float = Field(default=3.0, gt=0.0, le=1000.0, description="Weight of the prior, in rounds.")

    def learner(self, arms: Arms, parts: Parts) -> Learner:
        """The algorithm."""
        tasks = min(parts.tasks, OF_TASKS)
        return LinUcb(arms, tasks, optimism=self.optimism, ridge=self.ridge, discount=self.discount)

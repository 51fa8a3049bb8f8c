"""Upper confidence bounds on goodput, of rounds that fade or of a window."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from adaptspec.control.bandits.arms import Arms
from adaptspec.control.bandits.estimates import bounded
from adaptspec.control.bandits.learner import Learner, LedgerLearner, Pick, View, settle
from adaptspec.control.bandits.ledger import Memory
from adaptspec.control.bandits.spec import BanditSpec
from adaptspec.control.choosers.chooser import Parts
from adaptspec.types import FloatArray


class Ucb(LedgerLearner):
    """argmax over arms of  g_a + optimism * s_a * sqrt(2 log(1 + n) * (1 / n_a - 1 / n_best)).

    g_a = sum(earned) / sum(spent) over fading rounds (discounted UCB) or the last `window` (sliding-window UCB), s_a
    the deviation of one round's ratio, n_a the rounds that told of arm a, n their number over all arms, and those at
    off with them: the longer nothing is tried, the more it is worth a try. Subtracting
    1 / n_best, with n_best that of the best known arm (infinite for off, which needs no measuring), is where this
    departs from the paper: arms that were seen in the same rounds share their luck, so what they have in common is no
    reason to explore. Scores are held to what is possible given the shallower arms (`estimates.bounded`).

    Regimes: few arms, stationary or slowly changing traffic; an arm that is not seen comes back when its counts have
    faded, about every 1 / (1 - discount) rounds, which bounds both what is lost on exploring and how late a change is
    noticed. Deterministic: propensities are 1.
    Source: Garivier and Moulines 2011, "On Upper-Confidence Bound Policies for Switching Bandit Problems".
    """

    def __init__(self, arms: Arms, optimism: float = 0.3, margin: float = 0.01) -> None:
        super().__init__(arms)
        self._optimism, self._margin = optimism, margin

    def pick(self, view: View) -> Pick:
        """See `Learner.pick`."""
        seen = view.estimates.seen
        counts = np.maximum(seen, 0.1)
        best = counts[np.arange(len(counts)), view.best_known][:, None]
        total = np.where(np.isfinite(seen), seen, 0.0).sum(axis=1, keepdims=True) + view.estimates.plain[:, None]
        missing = np.maximum(1.0 / counts - 1.0 / best, 0.0)
        bonus = self._optimism * view.estimates.spread * np.sqrt(2.0 * np.log1p(total) * missing)
        scores: FloatArray = bounded(view.estimates.ratio + bonus, seen, self._arms, view.costs)
        arms, exploring = settle(scores, view, self._margin)
        return Pick(arms, np.ones(len(arms)), exploring)


class UcbSpec(BanditSpec):
    """`choose:` of upper confidence bounds."""

    algorithm: Literal["ucb"]
    optimism: float = Field(default=0.3, ge=0.0, le=10.0, description="How much uncertainty counts in an arm's favour.")
    window: int | None = Field(
        default=None, ge=16, le=100_000, description="Remember the last so many rounds, in place of fading."
    )

    @property
    def memory(self) -> Memory:
        """How long rounds are remembered."""
        return Memory(self.discount, self.window)

    def learner(self, arms: Arms, parts: Parts) -> Learner:  # noqa: ARG002 - every learner is built alike
        """The algorithm."""
        return Ucb(arms, self.optimism)

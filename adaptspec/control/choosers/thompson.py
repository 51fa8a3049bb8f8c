"""Thompson sampling on goodput: play what a draw from the posterior says is best."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from adaptspec.control.bandits.arms import Arms
from adaptspec.control.bandits.estimates import bounded
from adaptspec.control.bandits.learner import Learner, LedgerLearner, Pick, View, lacking, settle
from adaptspec.control.bandits.spec import BanditSpec
from adaptspec.control.choosers.chooser import Parts

# Draws from which an arm's propensity is counted: the share of them in which it would have been played.
_DRAWS = 32


class Thompson(LedgerLearner):
    """Draw  theta_a ~ Normal(g_a, (scale * e_a)^2)  for each arm and play the highest.

    g_a = sum(earned) / sum(spent) over fading rounds, e_a its standard error, both with one round of prior belief; off
    is 1 without error. What arms seen in the same rounds have in common is drawn once for all of them: the error of an
    arm is split into that of the best known arm's rounds, which all share, and what it lacks beyond those.
    Draws are held to what is possible given the shallower arms (`estimates.bounded`).

    Regimes: as UCB, but explores in proportion to the chance of being best, so it wastes less where arms are nearly
    alike, and several contexts spread over arms instead of moving together. Propensities are the share of
    further draws that choose the same arm, at least 1 / (draws + 1): good enough for off-policy estimates.
    Source: Thompson 1933; discounting as in Raj and Kalyani 2017, "Taming Non-stationary Bandits".
    """

    def __init__(self, arms: Arms, scale: float = 1.0, seed: int = 0, margin: float = 0.01) -> None:
        super().__init__(arms)
        self._scale, self._margin = scale, margin
        self._rng = np.random.default_rng(seed)

    def pick(self, view: View) -> Pick:
        """See `Learner.pick`."""
        ratio, seen = view.estimates.ratio, view.estimates.seen
        noise = self._rng.standard_normal((1 + _DRAWS, *ratio.shape))
        scores = bounded(ratio + self._scale * lacking(view) * noise, seen, self._arms, view.costs)
        arms, exploring = settle(scores, view, self._margin)
        again = (arms[1:] == arms[0]).sum(axis=0)
        return Pick(arms[0], (1.0 + again) / (1.0 + _DRAWS), exploring[0])


class ThompsonSpec(BanditSpec):
    """`choose:` of Thompson sampling."""

    algorithm: Literal["thompson"]
    scale: float = Field(default=1.0, gt=0.0, le=10.0, description="Widens (above 1) or narrows the posterior.")
    seed: int = Field(default=0, ge=0, description="Of the random draws.")

    def learner(self, arms: Arms, parts: Parts) -> Learner:  # noqa: ARG002 - every learner is built alike
        """The algorithm."""
        return Thompson(arms, self.scale, self.seed)

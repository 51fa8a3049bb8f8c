"""Exponential weights on goodput: no belief about the traffic, only about what was drawn and seen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
from pydantic import Field

from adaptspec.control.bandits.arms import Arms
from adaptspec.control.bandits.contexts import Contexts
from adaptspec.control.bandits.learner import Learner, Pick, View
from adaptspec.control.bandits.ledger import EARNED, SPENT, Lot, N
from adaptspec.control.bandits.spec import BanditSpec
from adaptspec.control.choosers.chooser import Parts
from adaptspec.control.learned import counts, sums
from adaptspec.types import BoolArray, FloatArray, IntArray

# Explores once in so many rounds, at a random time among them.
_STRETCH = 128.0
# After so many episodes at most, where the arm below has just turned out to be the best.
_SOON = 2.0
# What is left of the sums after a surprise.
_KEPT = 0.2
# A share of the exploration that goes to any arm, not to the next deeper one.
_ANYWHERE = 0.25


class Exp3:
    """P(a) = (1 - x) * exp(rate * G_a) / sum + x * E(a),   G_a = (1 + t) * m_a + C_a,   t fading episodes, and

        C_a <- fade * C_a + seen_a * (g_a - m_a) / (P(seen_a) + implicit):

    the goodput believed of the arm times the episodes it stands for, corrected by what was drawn and seen, so that an
    arm that is not seen keeps its value (doubly robust). g_a is the episode's ratio of sums, m_a the ratio of fading
    sums before it, P(seen_a) the probability that the drawn arm is one that tells of a: itself, or a deeper one of its
    family. `implicit` exploration biases the correction towards 0 a little, and bounds its variance. Off is known.
    Explicit exploration: once in 128 rounds, at a random time (x is the length of an episode over what is left of these
    while it has not happened yet), mostly of the arm above the best one, since deeper arms tell of shallower ones and
    not the reverse; sooner where that one has just become the best.

    Regimes: traffic that changes at will, or works against a learner that can be predicted; pays for this with noise
    where traffic is steady. Propensities are P.
    Sources: Neu 2015, "Explore no more" (Exp3-IX); Alon et al. 2017, "Nonstochastic Multi-Armed Bandits with
    Graph-Structured Feedback" (Exp3-SET); Dudik et al. 2011, "Doubly Robust Policy Evaluation and Learning".
    """

    uses_features = False

    def __init__(
        self,
        arms: Arms,
        contexts: Contexts,
        *,
        rate: float = 6.0,
        implicit: float = 0.1,
        discount: float = 0.993,
        dwell: int = 8,
        seed: int = 0,
    ) -> None:
        self._arms, self._rate, self._implicit = arms, rate, implicit
        self._discount, self._dwell = discount, dwell
        self._outlives = contexts.scope != "request"
        shape = (contexts.count, contexts.buckets, len(arms))
        self._episodes: FloatArray = np.zeros(shape[:2])
        self._corrections: FloatArray = np.zeros(shape)
        self._believed: FloatArray = np.ones(shape)
        self._told: FloatArray = np.ones((contexts.count, len(arms)))
        self._stretch: FloatArray = np.zeros(contexts.count)
        self._explored: BoolArray = np.zeros(contexts.count, dtype=np.bool_)
        self._best: IntArray = np.full(contexts.count, -1, dtype=np.int64)
        self._rng = np.random.default_rng(seed)

    def start(self, context: int) -> None:
        """See `Learner.start`."""
        self._episodes[context] = self._corrections[context] = 0.0
        self._stretch[context] = self._rng.random() * _STRETCH
        self._explored[context] = False
        self._best[context] = -1
        self._told[context] = 1.0

    def observe(self, lot: Lot, features: FloatArray, surprising: BoolArray) -> None:  # noqa: ARG002 - the protocol's
        """See `Learner.observe`."""
        at = lot.contexts, lot.buckets
        seen = lot.sums[..., N] > 0
        earned = lot.sums[..., EARNED] / np.maximum(lot.sums[..., SPENT], 1e-9)
        missed = seen * (earned - self._believed[at]) / (self._told[lot.contexts] + self._implicit)
        if self._arms.off is not None:
            missed[:, self._arms.off] = 0.0
        episodes = lot.rounds / self._dwell
        fade = self._discount**lot.rounds * np.where(surprising, _KEPT, 1.0)
        self._episodes[at] = self._episodes[at] * fade + episodes
        self._corrections[at] = self._corrections[at] * fade[:, None] + missed * episodes[:, None]

    def pick(self, view: View) -> Pick:
        """See `Learner.pick`."""
        contexts, every = view.contexts, np.arange(len(view.contexts))
        self._believed[contexts, view.bucket] = view.estimates.ratio
        weights = self._weights(view)
        best = np.argmax(weights, axis=1)
        self._look_on(contexts, best)
        exploration = self._exploration(view, best)
        left = _STRETCH - self._stretch[contexts]
        length = np.maximum(view.rounds, self._dwell)
        may = view.may_explore & ~self._explored[contexts] & (exploration.sum(axis=1) > 0)
        share = np.where(may, np.minimum(length / np.maximum(left, 1.0), 1.0), 0.0)[:, None]
        chances = (1.0 - share) * weights + share * exploration
        explores = self._rng.random(len(every)) < share[:, 0]
        drawn = np.where(explores[:, None], exploration, weights)
        arms = (drawn.cumsum(axis=1) < self._rng.random((len(every), 1)) * drawn.sum(axis=1, keepdims=True)).sum(axis=1)
        stays = (view.incumbent >= 0) & ~view.may_switch
        arms = np.where(stays, view.incumbent, np.minimum(arms, len(self._arms) - 1))
        chances = np.where(stays[:, None], np.arange(len(self._arms)) == arms[:, None], chances)
        self._told[contexts] = chances @ self._arms.reveals
        self._count(contexts, view.rounds, explores & ~stays)
        return Pick(arms, chances[every, arms], explores & (weights[every, arms] < 0.5))

    def learned(self) -> dict[str, FloatArray]:
        """The fading sums of contexts, where these outlive requests."""
        if not self._outlives:
            return {}
        return {"episodes": self._episodes.copy(), "corrections": self._corrections.copy()}

    def restore(self, learned: Mapping[str, FloatArray]) -> None:
        """See `Chooser.restore`."""
        if self._outlives:
            episodes = counts(learned, "episodes", self._episodes.shape)
            self._corrections = sums(learned, "corrections", self._corrections.shape)
            self._episodes = episodes

    def _weights(self, view: View) -> FloatArray:
        """[m, K] the exponential weights."""
        at = view.contexts, view.bucket
        gains = (1.0 + self._episodes[at])[:, None] * view.estimates.ratio + self._corrections[at]
        gains = np.where(view.playable, self._rate * gains, -np.inf)
        weights = np.exp(gains - gains.max(axis=1, keepdims=True))
        return np.asarray(weights / weights.sum(axis=1, keepdims=True), dtype=np.float64)

    def _exploration(self, view: View, best: IntArray) -> FloatArray:
        """[m, K] where to explore: next above the best arm in each family, and a little anywhere."""
        arms = self._arms
        bottom = (arms.below < 0) & (arms.families >= 0) & (arms.families != arms.families[best][:, None])
        above = ((arms.below == best[:, None]) | bottom) & view.playable
        anywhere = view.playable & (arms.families >= 0) & (np.arange(len(arms)) != best[:, None])
        told = anywhere & ~arms.reveals[best]
        chances = (1.0 - _ANYWHERE) * _normal(above) + _ANYWHERE * _normal(told)
        return _normal(chances)

    def _look_on(self, contexts: IntArray, best: IntArray) -> None:
        """Where a deeper arm has become the best, the one above it is looked at soon: shifts may take many steps."""
        last = self._best[contexts]
        deeper = contexts[(last >= 0) & (self._arms.depths[best] > self._arms.depths[last])]
        self._stretch[deeper], self._explored[deeper] = _STRETCH - _SOON * self._dwell, False
        self._best[contexts] = best

    def _count(self, contexts: IntArray, rounds: IntArray, explored: BoolArray) -> None:
        self._stretch[contexts] += rounds
        over = self._stretch[contexts] >= _STRETCH
        self._stretch[contexts] = np.where(over, 0.0, self._stretch[contexts])
        self._explored[contexts] = explored | (self._explored[contexts] & ~over)


def _normal(weights: FloatArray | BoolArray) -> FloatArray:
    """Rows that sum to 1; rows of zeros stay."""
    total = weights.sum(axis=1, keepdims=True)
    return np.asarray(weights / np.maximum(total, 1e-12), dtype=np.float64)


class Exp3Spec(BanditSpec):
    """`choose:` of exponential weights."""

    algorithm: Literal["exp3"]
    rate: float = Field(default=6.0, gt=0.0, le=100.0, description="How sharply weights follow goodput.")
    implicit: float = Field(default=0.1, gt=0.0, le=1.0, description="Implicit exploration: less variance, more bias.")
    seed: int = Field(default=0, ge=0, description="Of the random draws.")

    def learner(self, arms: Arms, parts: Parts) -> Learner:
        """The algorithm."""
        return Exp3(
            arms,
            Contexts(self.scope, parts.max_rows, parts.tasks),
            rate=self.rate,
            implicit=self.implicit,
            discount=self.discount,
            dwell=self.dwell_rounds,
            seed=self.seed,
        )

"""The bandit algorithms: each an index function over what the ledger says of the arms, and its `choose:`."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
from pydantic import Field

from adaptspec.control.algorithms.arm_selection import ArmSelector, Pick, View
from adaptspec.control.algorithms.arms import Arms
from adaptspec.control.algorithms.bandit import BanditSpec
from adaptspec.control.algorithms.ledger import EARNED, SPENT, Ledger, N, Observed, Scope
from adaptspec.types import FloatArray

# Exponential weights explore once in about so many rounds.
_STRETCH = 192.0


class Ucb(ArmSelector):
    """argmax over arms of  g_a + optimism * s_a * sqrt(2 log(1 + n) * (1 / n_a - 1 / n_best)).

    g_a = sum(earned) / sum(spent) over fading rounds, s_a the deviation of one round's ratio, n_a the rounds that told
    of arm a, n their number over all arms and at off: the longer nothing is tried, the more it is worth a try.
    Subtracting 1 / n_best, with n_best that of the best known arm (infinite for off, which needs no measuring), is
    where this departs from the paper: what arms were seen in together is no reason to explore.

    Regimes: few arms, stationary or slowly changing traffic; an arm that is not seen comes back when its counts have
    faded, about every 1 / (1 - discount) rounds. Deterministic.
    Source: Garivier and Moulines 2011, "On Upper-Confidence Bound Policies for Switching Bandit Problems".
    """

    def __init__(self, arms: Arms, ledger: Ledger, optimism: float = 0.3) -> None:
        super().__init__(arms, ledger)
        self._optimism = optimism

    def pick(self, view: View) -> Pick:
        counts = view.seen + 1.0  # that of the prior belief
        total = np.where(np.isfinite(view.seen), view.seen, 0.0).sum(axis=1, keepdims=True) + view.plain[:, None]
        missing = np.maximum(1.0 / counts - 1.0 / view.of(counts, view.best_known), 0.0)
        bonus = self._optimism * view.spread * np.sqrt(2.0 * np.log1p(total) * missing)
        return self.highest(view.ratio + bonus, view)


class Thompson(ArmSelector):
    """Draw  theta_a ~ Normal(g_a, (scale * e_a)^2)  for each arm and play the highest.

    g_a = sum(earned) / sum(spent) over fading rounds, e_a its standard error beyond what arm a was seen in together
    with the best known one, both with one round of prior belief; off is 1 without error.

    Regimes: as UCB, but explores in proportion to the chance of being best, so it wastes less where arms are nearly
    alike, and several contexts spread over arms instead of moving together.
    Source: Thompson 1933; discounting as in Raj and Kalyani 2017, "Taming Non-stationary Bandits".
    """

    def __init__(self, arms: Arms, ledger: Ledger, scale: float = 1.0, seed: int = 0) -> None:
        super().__init__(arms, ledger, seed)
        self._scale = scale

    def pick(self, view: View) -> Pick:
        noise = self.rng.standard_normal(view.ratio.shape)
        return self.highest(view.ratio + self._scale * view.lacking * noise, view)


class Exp3(ArmSelector):
    """P(a) = (1 - x) * exp(rate * G_a) / sum + x * E(a),   G_a = (1 + t) * m_a + C_a,   t fading episodes, and
        C_a <- fade * C_a + seen_a * (g_a - m_a) / (P(seen_a) + implicit):

    the goodput believed of the arm times the episodes it stands for, corrected by what was drawn and seen, so that an
    arm that is not seen keeps its value (doubly robust). g_a is the ratio of sums of the episode's rounds, m_a that of
    fading sums before it, P(seen_a) the probability that the drawn arm is one that tells of a: itself, or a deeper one
    of its family. `implicit` exploration biases the correction towards 0 a little, and bounds its variance. Off is
    known. Explicit exploration E: the next arm above the best one, since deeper arms tell of shallower ones and not the
    reverse; x is an episode's length over 192 rounds, more while little is remembered.

    Regimes: traffic that changes at will, or works against a learner that can be predicted; pays for this with noise
    where traffic is steady.
    Sources: Neu 2015, "Explore no more" (Exp3-IX); Alon et al. 2017, "Nonstochastic Multi-Armed Bandits with
    Graph-Structured Feedback" (Exp3-SET); Dudik et al. 2011, "Doubly Robust Policy Evaluation and Learning".
    """

    def __init__(
        self, arms: Arms, ledger: Ledger, rate: float = 6.0, implicit: float = 0.1, *, dwell: int = 8, seed: int = 0
    ) -> None:
        super().__init__(arms, ledger, seed)
        self._rate, self._implicit, self._dwell = rate, implicit, dwell
        self._episodes: FloatArray = np.zeros((ledger.count, ledger.buckets))
        self.corrections: FloatArray = np.zeros((ledger.count, ledger.buckets, len(arms)))

    def start(self, context: int) -> None:
        self._episodes[context] = self.corrections[context] = 0.0

    def observe(self, observed: Observed, memo: FloatArray) -> None:
        """See `ArmSelector.observe`; the memo is what was believed of each arm, and how likely it was to be seen."""
        at, episodes = (observed.contexts, observed.bucket), observed.rounds / self._dwell
        believed, likely = memo[:, : len(self.arms)], memo[:, len(self.arms) :]
        earned = observed.sums[..., EARNED] / np.maximum(observed.sums[..., SPENT], 1e-9)
        missed = (observed.sums[..., N] > 0) * (earned - believed) / (likely + self._implicit)
        if self.arms.off is not None:
            missed[:, self.arms.off] = 0.0
        fade = self.ledger.discount**observed.rounds
        self._episodes[at] = self._episodes[at] * fade + episodes
        self.corrections[at] = self.corrections[at] * fade + missed * episodes

    def pick(self, view: View) -> Pick:
        at, every = (view.contexts, view.bucket), np.arange(len(view.contexts))
        gains = (1.0 + self._episodes[at])[:, None] * view.ratio + self.corrections[at]
        gains = np.where(view.playable, self._rate * gains, -np.inf)
        weights = np.exp(gains - gains.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        arms, best = self.arms, weights.argmax(axis=1)
        bottom = (arms.below < 0) & (arms.families >= 0) & (arms.families != arms.families[best][:, None])
        above = ((arms.below == best[:, None]) | bottom) & view.playable
        exploration = above / np.maximum(above.sum(axis=1, keepdims=True), 1)
        stretch = np.maximum(np.maximum(view.rounds, self._dwell) / _STRETCH, 1.0 / (2.0 + self._episodes[at]))
        share = np.where(above.any(axis=1), np.minimum(stretch, 1.0), 0.0)[:, None]
        chances = (1.0 - share) * weights + share * exploration
        drawn = self.draw(chances)
        memo = np.hstack((view.ratio, chances @ arms.reveals))
        return Pick(drawn, above[every, drawn] & (weights[every, drawn] < 0.5), memo)


class LinUcb(ArmSelector):
    """argmax over arms of  x . theta_a + optimism * s_a * sqrt(w_a - w_best), over fading rounds that told of arm a:

        theta_a = A_a^-1 b_a,    w_a = x . A_a^-1 x,
        A_a = ridge * I + sum(spent x x^T),    b_a = ridge * h_a x_task + sum(earned x).

    Weighing each round by what it spent makes x . theta a ratio of sums: with a
    constant x it is exactly sum(earned) / sum(spent). x is `Ledger.describe`'s. Off is 1 whatever x is. h_a is the
    ratio that the ledger says, s_a the deviation of one round's; the best known arm's width is subtracted as in `Ucb`.

    Regimes: mixed traffic in which the moment says which arm pays: it shares among tasks, batch sizes and requests what
    a table per context would have to learn anew for each. Misled where goodput is far from linear in x.
    Deterministic.
    Source: Li et al. 2010, "A Contextual-Bandit Approach to Personalized News Article Recommendation" (disjoint).
    """

    def __init__(self, arms: Arms, ledger: Ledger, optimism: float = 1.5, ridge: float = 3.0) -> None:
        super().__init__(arms, ledger)
        self._optimism, self._ridge, size = optimism, ridge, ledger.features
        self._a: FloatArray = np.zeros((len(arms), size, size))
        self._b: FloatArray = np.zeros((len(arms), size))

    def observe(self, observed: Observed, memo: FloatArray) -> None:
        """See `ArmSelector.observe`; the memo is x."""
        fade = self.ledger.discount**observed.rounds
        spent, earned = observed.sums[..., SPENT].T, observed.sums[..., EARNED].T  # [K, G]
        self._a = self._a * fade + (spent[:, None] * memo.T) @ memo
        self._b = self._b * fade + earned @ memo

    def pick(self, view: View) -> Pick:
        x = view.features
        at = x @ np.linalg.inv(self._a + self._ridge * np.eye(x.shape[1]))  # [K, m, F]
        width = np.maximum((at * x).sum(axis=-1), 0.0).T
        later = view.costs / (view.costs + view.entry)
        believed = self._ridge * at[..., : self.ledger.kinds].sum(axis=-1).T * view.ratio / later
        value = later * ((at @ self._b[..., None])[..., 0].T + believed)
        if self.arms.off is not None:
            value[:, self.arms.off], width[:, self.arms.off] = 1.0, 0.0
        view = replace(view, ratio=value)
        missing = np.maximum(width - view.of(width, view.best_known), 0.0)
        return replace(self.highest(value + self._optimism * view.spread * np.sqrt(missing), view), memo=x)

    def state(self) -> dict[str, FloatArray]:
        return {"a": self._a, "b": self._b}


class UcbSpec(BanditSpec):
    """`choose:` of upper confidence bounds."""

    algorithm: Literal["ucb"]
    optimism: float = Field(default=0.3, ge=0.0, le=10.0, description="How much uncertainty counts in an arm's favour.")

    def _index(self, arms: Arms, ledger: Ledger) -> ArmSelector:
        return Ucb(arms, ledger, self.optimism)


class ThompsonSpec(BanditSpec):
    """`choose:` of Thompson sampling."""

    algorithm: Literal["thompson"]
    scale: float = Field(default=1.0, gt=0.0, le=10.0, description="Widens (above 1) or narrows the posterior.")
    seed: int = Field(default=0, ge=0, description="Of the random draws.")

    def _index(self, arms: Arms, ledger: Ledger) -> ArmSelector:
        return Thompson(arms, ledger, self.scale, self.seed)


class Exp3Spec(BanditSpec):
    """`choose:` of exponential weights."""

    algorithm: Literal["exp3"]
    rate: float = Field(default=6.0, gt=0.0, le=100.0, description="How sharply weights follow goodput.")
    implicit: float = Field(default=0.1, gt=0.0, le=1.0, description="Implicit exploration: less variance, more bias.")
    seed: int = Field(default=0, ge=0, description="Of the random draws.")

    def _index(self, arms: Arms, ledger: Ledger) -> ArmSelector:
        return Exp3(arms, ledger, self.rate, self.implicit, dwell=self.dwell_rounds, seed=self.seed)


class LinUcbSpec(BanditSpec):
    """`choose:` of LinUCB."""

    algorithm: Literal["linucb"]
    scope: Scope = Field(default="request", description="Whose features an arm is chosen by.")
    optimism: float = Field(default=1.5, ge=0.0, le=10.0, description="How much uncertainty counts in an arm's favour.")
    ridge: float = Field(default=3.0, gt=0.0, le=1000.0, description="Weight of the prior, in rounds.")

    def _index(self, arms: Arms, ledger: Ledger) -> ArmSelector:
        return LinUcb(arms, ledger, self.optimism, self.ridge)

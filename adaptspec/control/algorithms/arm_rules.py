"""Rules by which a bandit chooses arms: UCB, Thompson sampling, Exp3 and LinUCB.

To add one: a class here, its spec in `bandit.py`, and a line in the registry.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from adaptspec.arrays import BoolArray, FloatArray, IntArray
from adaptspec.control.algorithms.arm_ledger import EARNED, SPENT, ArmEstimates, ArmLedger, ContextSums, N
from adaptspec.control.algorithms.request_features import RequestFeatures
from adaptspec.control.policy import Learner

# Exp3 explores once in about so many rounds.
_EXPLORATION_ROUNDS = 192.0


@dataclass(frozen=True)
class ArmView(ArmEstimates):
    """m contexts that need one of K arms, in a round of one batch bucket; F features."""

    contexts: IntArray  # [m]
    bucket: int
    incumbent: IntArray  # [m] the arm played until now; -1 for a new context
    rounds: IntArray  # [m] for which the incumbent was played
    playable: BoolArray  # [m, K]
    features: FloatArray  # [m, F]

    @property
    def best_seen(self) -> IntArray:
        """[m] the arm of the highest ratio among those seen; the incumbent where none was seen."""
        ratio = np.where((self.seen >= 1.0) & self.playable, self.ratio, -np.inf)
        unseen = (ratio.max(axis=1) == -np.inf) & (self.incumbent >= 0)
        return np.where(unseen, self.incumbent, ratio.argmax(axis=1))


@dataclass(frozen=True)
class ArmChoice:
    """Arms of m contexts, and which of them are chosen to learn about the arm.

    `memo` [m, X] is passed to `ArmRule.observe` with the rounds that this choice led to.
    """

    arms: IntArray  # [m]
    exploring: BoolArray  # [m]
    memo: FloatArray

    @classmethod
    def highest(cls, scores: FloatArray, view: ArmView, memo: FloatArray | None = None) -> ArmChoice:
        """The playable arms of the highest scores [m, K]; an arm is explored unless it is the best one seen."""
        arms = np.where(view.playable, scores, -np.inf).argmax(axis=1)
        return cls(arms, arms != view.best_seen, np.zeros((len(arms), 0)) if memo is None else memo)


class ArmRule(Learner):
    """Base of rules. A rule that needs no more than the ledger's estimates overrides `choose` alone."""

    def start(self, context: int) -> None:
        """The context belongs to a new request."""

    def choose(self, view: ArmView) -> ArmChoice:
        """Choose an arm for each context."""
        raise NotImplementedError

    def observe(self, observed: ContextSums, memo: FloatArray) -> None:
        """Learn from rounds; `memo` [G, X] is that of the choices that they were played by."""


class Ucb(ArmRule):
    """argmax over arms of  g_a + optimism * s_a * sqrt(2 log(1 + n) * (1 / n_a - 1 / n_best)).

    g_a = sum(earned) / sum(spent) over discounted rounds, s_a the standard deviation of one round's ratio, n_a the
    discounted rounds that show arm a, one round of prior included, and n the rounds of all arms. The paper has no
    1 / n_best, with n_best the count of the best arm seen (infinite for off): noise of rounds that show both arms is no
    reason to explore.

    Regimes: few arms; stationary or slowly changing traffic. An arm that is not seen is tried again when its counts
    have faded, about every 1 / (1 - discount) rounds. Deterministic.
    Source: Garivier and Moulines 2011, "On Upper-Confidence Bound Policies for Switching Bandit Problems".
    """

    def __init__(self, optimism: float = 0.3) -> None:
        self._optimism = optimism

    def choose(self, view: ArmView) -> ArmChoice:
        counts = view.seen + 1.0
        unshared = np.maximum(1.0 / counts - 1.0 / _of_arm(counts, view.best_seen), 0.0)
        bonus = self._optimism * view.spread * np.sqrt(2.0 * np.log1p(view.total)[:, None] * unshared)
        return ArmChoice.highest(view.ratio + bonus, view)


class Thompson(ArmRule):
    """Draw  theta_a ~ Normal(g_a, (scale * e_a)^2)  for each arm and play the highest.

    g_a = sum(earned) / sum(spent) over discounted rounds with one round of prior, e_a its standard error without that
    of the rounds that show both arm a and the best arm seen. Off is 1 without error.

    Regimes: as UCB. It explores in proportion to the chance that an arm is best, so it wastes less where arms are
    nearly equal, and contexts do not all move at once.
    Source: Thompson 1933; discounting as in Raj and Kalyani 2017, "Taming Non-stationary Bandits".
    """

    def __init__(self, scale: float = 1.0, seed: int = 0) -> None:
        self._scale, self._rng = scale, np.random.default_rng(seed)

    def choose(self, view: ArmView) -> ArmChoice:
        seen = np.where(np.isfinite(view.seen), view.seen, -1.0)
        shared = (1.0 + seen) / (1.0 + _of_arm(view.seen, view.best_seen))
        error = view.error * np.sqrt(np.maximum(1.0 - shared, 0.0))
        noise = self._rng.standard_normal(view.ratio.shape)
        return ArmChoice.highest(view.ratio + self._scale * error * noise, view)


class Exp3(ArmRule):
    """P(a) = (1 - x) * exp(rate * G_a) / sum + x * E(a),   G_a = (1 + t) * m_a + C_a,   t discounted episodes, and
        C_a <- fade * C_a + seen_a * (g_a - m_a) / (P(seen_a) + implicit):

    the ratio m_a believed of the arm times the episodes so far, corrected by what was seen of the arm, so that an arm
    that is not seen keeps its value (doubly robust). g_a is the ratio of sums of the episode's rounds, m_a that of the
    discounted sums before it, P(seen_a) the chance that the drawn arm shows arm a: the same arm, or a deeper one of its
    family. `implicit` exploration bounds the variance of the correction and biases it towards 0 a little. Off is known.
    Explicit exploration E is the next arm above the best one, since deeper arms show shallower ones and not the
    reverse; x is an episode's length over 192 rounds, more while few episodes are remembered.

    Regimes: traffic that changes arbitrarily, or works against a predictable learner; noisier than the other rules
    where traffic is steady.
    Sources: Neu 2015, "Explore no more" (Exp3-IX); Alon et al. 2017, "Nonstochastic Multi-Armed Bandits with
    Graph-Structured Feedback" (Exp3-SET); Dudik et al. 2011, "Doubly Robust Policy Evaluation and Learning".
    """

    def __init__(
        self, ledger: ArmLedger, rate: float = 6.0, implicit: float = 0.1, *, dwell: int = 8, seed: int = 0
    ) -> None:
        self._arms, self._discount, self._dwell = ledger.arms, ledger.discount, dwell
        self._rate, self._implicit, self._rng = rate, implicit, np.random.default_rng(seed)
        self._episodes: FloatArray = np.zeros((ledger.count, ledger.buckets))
        self._corrections: FloatArray = np.zeros((ledger.count, ledger.buckets, len(ledger.arms)))

    def start(self, context: int) -> None:
        self._episodes[context] = self._corrections[context] = 0.0

    def choose(self, view: ArmView) -> ArmChoice:
        """Draw arms. The memo is m_a [m, K], then P(seen_a) [m, K]."""
        arms, index = self._arms, (view.contexts, view.bucket)
        gains = (1.0 + self._episodes[index])[:, None] * view.ratio + self._corrections[index]
        gains = np.where(view.playable, self._rate * gains, -np.inf)
        weights = np.exp(gains - gains.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        best = weights.argmax(axis=1)
        other_family = (arms.below < 0) & (arms.families >= 0) & (arms.families != arms.families[best][:, None])
        above = ((arms.below == best[:, None]) | other_family) & view.playable
        exploration = above / np.maximum(above.sum(axis=1, keepdims=True), 1)
        length = np.maximum(view.rounds, self._dwell)
        share = np.maximum(length / _EXPLORATION_ROUNDS, 1.0 / (2.0 + self._episodes[index]))
        share = np.where(above.any(axis=1), np.minimum(share, 1.0), 0.0)[:, None]
        chances = (1.0 - share) * weights + share * exploration
        beyond = chances.cumsum(axis=1) < self._rng.random((len(chances), 1))
        drawn = np.minimum(beyond.sum(axis=1), len(arms) - 1)
        exploring = (_of_arm(exploration, drawn) > 0.0) & (_of_arm(weights, drawn) < 0.5)
        return ArmChoice(drawn, exploring[:, 0], np.hstack((view.ratio, chances @ arms.reveals)))

    def observe(self, observed: ContextSums, memo: FloatArray) -> None:
        believed, chance_seen = np.hsplit(memo, 2)
        seen, earned, spent = (observed.sums[..., part] for part in (N, EARNED, SPENT))
        correction = (seen > 0) * (earned / np.maximum(spent, 1e-9) - believed) / (chance_seen + self._implicit)
        if self._arms.off is not None:
            correction[:, self._arms.off] = 0.0
        index, episodes = (observed.contexts, observed.bucket), observed.rounds / self._dwell
        fade = self._discount**observed.rounds
        self._episodes[index] = self._episodes[index] * fade + episodes
        self._corrections[index] = self._corrections[index] * fade + correction * episodes


class LinUcb(ArmRule):
    """argmax over arms of  x . theta_a + optimism * s_a * sqrt(2 log(1 + t) * (w_a - w_best)):

        theta_a = A_a^-1 b_a,    w_a = x . A_a^-1 x,
        A_a = ridge * I + sum(spent x x^T),    b_a = ridge * h_a * u + sum(earned x).

    The sums are over discounted rounds that show arm a. Rounds are weighted by the time they spent, so x . theta_a is a
    ratio of sums: with a constant x it is exactly sum(earned) / sum(spent). x are the `RequestFeatures`, u is 1 for the
    features that are tasks and 0 for others, h_a is the ratio in the ledger, s_a the standard deviation of one round's
    ratio. The width w_best of the best arm seen is subtracted as in `Ucb`. Off is 1 for any x.

    t counts rounds since the start of the process, without discount. So the bound of an arm that is not played keeps
    growing. A bound that only x moved stayed below 1 for ever where the prior was a little too low, and the arm was
    never tried. The paper has no such term: it bounds the error for a fixed number of rounds.

    Regimes: mixed traffic in which features show which arm pays. It shares among tasks, batch sizes and requests what a
    table would learn for each anew. Misled where the ratio is far from linear in x. Deterministic.
    Source: Li et al. 2010, "A Contextual-Bandit Approach to Personalized News Article Recommendation" (disjoint);
    log t as in Auer et al. 2002, "Finite-time Analysis of the Multiarmed Bandit Problem" (UCB1).
    """

    def __init__(
        self, ledger: ArmLedger, features: RequestFeatures, optimism: float = 0.25, ridge: float = 3.0
    ) -> None:
        self._off, self._discount, self._task_features = ledger.arms.off, ledger.discount, features.tasks
        self._optimism, self._ridge = optimism, ridge
        self._rounds = 0
        self._a: FloatArray = np.zeros((len(ledger.arms), features.count, features.count))
        self._b: FloatArray = np.zeros((len(ledger.arms), features.count))

    def choose(self, view: ArmView) -> ArmChoice:
        """Choose arms. The memo is x."""
        x = view.features
        solved = x @ np.linalg.inv(self._a + self._ridge * np.eye(x.shape[1]))  # [K, m, F]
        width = np.maximum((solved * x).sum(axis=-1), 0.0).T
        prior = self._ridge * solved[..., : self._task_features].sum(axis=-1).T * view.ratio
        value = view.staying * (solved @ self._b[..., None])[..., 0].T + prior
        if self._off is not None:
            value[:, self._off], width[:, self._off] = 1.0, 0.0
        view = replace(view, ratio=value)
        unshared = np.maximum(width - _of_arm(width, view.best_seen), 0.0)
        bonus = self._optimism * view.spread * np.sqrt(2.0 * np.log1p(self._rounds) * unshared)
        return ArmChoice.highest(value + bonus, view, memo=x)

    def observe(self, observed: ContextSums, memo: FloatArray) -> None:
        self._rounds += observed.rounds
        fade = self._discount**observed.rounds
        spent, earned = observed.sums[..., SPENT].T, observed.sums[..., EARNED].T  # [K, G]
        self._a = self._a * fade + (spent[:, None] * memo.T) @ memo
        self._b = self._b * fade + earned @ memo

    def state(self) -> dict[str, FloatArray]:
        return {"a": self._a, "b": self._b}


def _of_arm(values: FloatArray, arms: IntArray) -> FloatArray:
    """[m, 1] values [m, K] of one arm [m] per context."""
    return np.take_along_axis(values, arms[:, None], axis=1)

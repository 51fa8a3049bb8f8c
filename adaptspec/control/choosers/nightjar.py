"""A bandit per batch size that explores in bins and pays for switching back on."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from adaptspec.control.bandits.arms import Arms
from adaptspec.control.bandits.contexts import Contexts, Scope
from adaptspec.control.bandits.estimates import bounded
from adaptspec.control.bandits.learner import Learner, LedgerLearner, Pick, View, lacking
from adaptspec.control.bandits.spec import BanditSpec
from adaptspec.control.choosers.chooser import Parts
from adaptspec.types import BoolArray, IntArray


class Nightjar(LedgerLearner):
    """Time at each batch size comes in blocks of 1, 2, 4 ... bins; an arm is locked for a bin. The b-th bin of a block

        explores with probability 1 / b: an arm drawn uniformly from those that could be best and that the best one's
        rounds tell nothing of;
        exploits otherwise: argmax over arms of sum(earned) / (sum(spent) + switching cost) + its standard error,

    where the switching cost is what the drafter must catch up after a spell of off, and the error only that of what the
    arm was not seen in together with the best (a few unlucky bins shall not rule an arm out for good). So every
    block begins by exploring, and exploration thins out as blocks grow: of n bins about (log n)^2 / 3 explore. An
    explored bin is half as long.

    Regimes: load is what varies, and changes from hour to hour rather than from minute to minute: what it found at
    one batch size it uses again when that returns. Nothing fades unless `discount` says so, and late blocks explore
    rarely, so it notices a change of traffic late; with a discount no block outlasts what is remembered.
    Propensities are the bin's.
    Source: Li et al. 2025, "Nightjar: Dynamic Adaptive Speculative Decoding for Large Language Models Serving"
    (arXiv 2512.22420), after the binned greedy exploration of Luo et al. 2018, "Efficient Contextual Bandits in
    Non-stationary Worlds". Ours differs in that a round also counts for the shallower arms it tells of, that a deeper
    arm is not entered before the next shallower one was seen, nor explored where what that one shows rules it out.
    """

    def __init__(self, arms: Arms, contexts: Contexts, *, dwell: int = 8, discount: float = 1.0, seed: int = 0) -> None:
        super().__init__(arms)
        self._dwell = dwell
        # A block that outlasts what is remembered would explore more rarely than is forgotten.
        remembered = np.inf if discount >= 1.0 else 1.0 / (1.0 - discount) / dwell
        self._longest = int(min(40.0, np.log2(max(remembered, 1.0))))
        self._block: IntArray = np.zeros((contexts.count, contexts.buckets), dtype=np.int64)
        self._bin: IntArray = np.zeros((contexts.count, contexts.buckets), dtype=np.int64)
        self._rng = np.random.default_rng(seed)

    def start(self, context: int) -> None:
        """A new request has blocks of its own."""
        self._block[context] = self._bin[context] = 0

    def pick(self, view: View) -> Pick:
        """See `Learner.pick`."""
        at, every = (view.contexts, view.bucket), np.arange(len(view.contexts))
        over = self._bin[at] >= 1 << np.minimum(self._block[at], self._longest)
        # An episode of an arm that is picked again lasts for several bins.
        bins = np.maximum(view.rounds // self._dwell, 1)
        self._block[at] += over
        self._bin[at] = np.where(over, 1, self._bin[at] + bins)
        share = np.where(view.may_explore, np.where(over, 1.0, bins / self._bin[at]), 0.0)
        best = self._best(view)
        worth = self._worth_exploring(view, best)
        uniform = worth / worth.sum(axis=1, keepdims=True)
        best = np.where((view.incumbent >= 0) & ~view.may_switch, view.incumbent, best)
        chances = share[:, None] * uniform
        chances[every, best] += 1.0 - share
        drawn = chances.cumsum(axis=1) < self._rng.random((len(every), 1))
        arms = np.minimum(drawn.sum(axis=1), len(self._arms) - 1)
        return Pick(arms, chances[every, arms], arms != best)

    @staticmethod
    def _best(view: View) -> IntArray:
        """[m] the arm to exploit: the highest estimate, with the benefit of one standard error where it is unsure."""
        known = view.best_known
        hopes = np.where(view.playable & (view.estimates.seen >= 1.0), view.estimates.ratio + lacking(view), -np.inf)
        best = np.argmax(hopes, axis=1)
        return np.where(np.isfinite(hopes.max(axis=1)), best, known)

    def _worth_exploring(self, view: View, best: IntArray) -> BoolArray:
        """[m, K] what can be played and tells something new: neither off, which is known, nor what the best arm's

        rounds tell of anyway, nor what cannot be best by what the shallower arms of the family show. Where nothing is
        left, or the best is off, which trying costs most to leave, the best stays among them.
        """
        estimates, every = view.estimates, np.arange(len(best))
        hopes = np.where(estimates.seen >= 1.0, estimates.ratio + 2.0 * estimates.error, np.inf)
        possible = bounded(hopes, estimates.seen, self._arms, view.costs)
        hopeless = (self._arms.below >= 0) & (possible < np.take_along_axis(estimates.ratio, best[:, None], axis=1))
        found: BoolArray = view.playable & ~hopeless & ~self._arms.reveals[best]
        if self._arms.off is not None:
            found[:, self._arms.off] = False
        found[every, best] = (best == self._arms.off) | ~found.any(axis=1)
        return found


class NightjarSpec(BanditSpec):
    """`choose:` of binned exploration per batch size."""

    algorithm: Literal["nightjar"]
    scope: Scope = Field(default="batch-bucket", description="Whose record an arm is chosen by.")
    discount: float = Field(default=1.0, gt=0.5, le=1.0, description="Per round: how fast what was seen fades.")
    seed: int = Field(default=0, ge=0, description="Of the random draws.")

    def learner(self, arms: Arms, parts: Parts) -> Learner:
        """The algorithm."""
        contexts = Contexts(self.scope, parts.max_rows, parts.tasks)
        return Nightjar(arms, contexts, dwell=self.dwell_rounds, discount=self.discount, seed=self.seed)

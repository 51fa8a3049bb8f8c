"""The lossy methods, `threshold` and `typical`: keep drafted tokens that are good enough for the target."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np

from adaptspec.arrays import BoolArray, IntArray
from adaptspec.draft_tree import DraftTree
from adaptspec.models.noise import Floats
from adaptspec.models.sampling import Logits, SamplingBatch, certainty, entropies
from adaptspec.verification.method import Method, Positions, VerifyResult, accepted_run, node_parents, position_starts


class GoodEnough(Method):
    """Keeps drafted tokens up to the first that is not good enough; the target's own token follows.

    The token that the target itself draws at a position is good enough by definition: the text is the same
    whether it is kept or put in. One that the rules remove (a score of -inf) never is.
    """

    lossy = True

    @abstractmethod
    def good_enough(self, scores: Floats, tokens: IntArray, index: IntArray, sampling: SamplingBatch) -> BoolArray:
        """Which of the drafted `tokens` [M] are, bool [M], by the scores [M, V] there; `index` [M] are their rows."""

    def verify(self, logits: Logits, draft: DraftTree, sampling: SamplingBatch) -> VerifyResult:
        positions = Positions.of(draft)
        scores = sampling.process(logits, positions.row, positions.paths)
        target = sampling.choose(scores, positions.row, positions.depth)
        passed: BoolArray = np.zeros(len(draft.token), dtype=np.bool_)
        if len(passed):
            before = node_parents(draft)
            allowed = scores[before, draft.token] > -np.inf
            good = self.good_enough(scores[before], draft.token, draft.row, sampling)
            passed = (good & allowed) | (target[before] == draft.token)
        accepted = accepted_run(draft, passed)
        return VerifyResult.of_chains(accepted, target[position_starts(draft) + accepted])


@dataclass(frozen=True)
class Threshold(GoodEnough):
    """Keep a drafted x if p(x) >= high, or if p(x) >= low and x is among the target's `top` likeliest; else reject.

    p is the softmax of the processed scores, also for greedy rows (there it is that of temperature 1): the marks then
    say how far from the argmax the text may stray. The first rejected token is replaced by the target's own.
    """

    high: float = 0.3
    low: float = 0.05
    top: int = 3

    name = "threshold"

    def good_enough(self, scores: Floats, tokens: IntArray, *_: object) -> BoolArray:
        p = certainty(scores, tokens).confidence
        among_top = (scores > np.take_along_axis(scores, tokens[:, None], axis=1)).sum(axis=1) < self.top
        good: BoolArray = (p >= self.high) | ((p >= self.low) & among_top)
        return good


@dataclass(frozen=True)
class Typical(GoodEnough):
    """Keep a drafted x if p(x) > min(epsilon, delta * exp(-H(p))), H the entropy in nats of the target's distribution.

    The surer the target, the likelier a token must be; where many would do, one of probability epsilon is enough.
    Greedy rows have a point mass for p, so that for them the text stays exact. The first rejected token is
    replaced by the target's own. Source: Cai et al. 2024, "Medusa", section 2.3.2 (typical acceptance).
    """

    epsilon: float = 0.09
    delta: float = 0.3

    name = "typical"

    def good_enough(self, scores: Floats, tokens: IntArray, index: IntArray, sampling: SamplingBatch) -> BoolArray:
        p = sampling.probabilities(scores, index)[np.arange(len(tokens)), tokens]
        entropy = np.where(sampling.sampled[index], entropies(scores), 0.0)
        good: BoolArray = p > np.minimum(self.delta * np.exp(-entropy), self.epsilon)
        return good

"""The lossy methods, `threshold` and `typical`: accept drafted tokens that are plausible to the target."""

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
    """Accepts drafted tokens up to the first that is not good enough; the target's token follows.

    The token that the target draws at a position is always good enough: the text is the same whether it is accepted or
    emitted as the correction. Tokens that the sampling rules remove (a score of -inf) never are.
    """

    lossy = True

    @abstractmethod
    def good_enough(self, scores: Floats, tokens: IntArray, index: IntArray, sampling: SamplingBatch) -> BoolArray:
        """Whether drafted tokens [M] are good enough, by scores [M, V] at their positions; `index` [M]: their rows."""

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
    """Accept a drafted x if p(x) >= high, or if p(x) >= low and x is among the target's `top` likeliest tokens.

    p is the softmax of the processed scores, also for greedy rows (at temperature 1), whose output may then differ from
    the argmax. The first rejected token is replaced by the target's token.
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
    """Accept a drafted x if p(x) > min(epsilon, delta * exp(-H(p))), H being the entropy (nats) of the target's p.

    The lower the entropy, the likelier a token must be; a probability above epsilon is always enough. Greedy rows have
    a point mass for p, so their output is exact. The first rejected token is replaced by the target's token.
    Source: Cai et al. 2024, "Medusa", section 2.3.2 (typical acceptance).
    """

    epsilon: float = 0.09
    delta: float = 0.3

    name = "typical"

    def good_enough(self, scores: Floats, tokens: IntArray, index: IntArray, sampling: SamplingBatch) -> BoolArray:
        p = sampling.probabilities(scores, index)[np.arange(len(tokens)), tokens]
        entropy = np.where(sampling.sampled[index], entropies(scores), 0.0)
        good: BoolArray = p > np.minimum(self.delta * np.exp(-entropy), self.epsilon)
        return good

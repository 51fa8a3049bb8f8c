"""The lossy methods, `threshold` and `typical`: keep drafted tokens that are good enough for the target."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np
import torch

from adaptspec.models.draft import Draft
from adaptspec.models.sampling import SamplingBatch
from adaptspec.types import IntArray
from adaptspec.verification.method import Method, VerifyResult, Windows, accepted_run, on_device


class GoodEnough(Method):
    """Keeps drafted tokens up to the first that is not good enough; the target's own token follows.

    The token that the target itself draws at a position is good enough by definition: the text is the same
    whether it is kept or put in. One that processors rule out (a score of -inf) never is.
    """

    lossy = True

    @abstractmethod
    def good_enough(
        self, scores: torch.Tensor, tokens: torch.Tensor, index: IntArray, sampling: SamplingBatch
    ) -> torch.Tensor:
        """Which of the drafted `tokens` [M] are, bool [M], by the scores [M, V] there; `index` [M] are their rows."""

    def verify(self, logits: torch.Tensor, draft: Draft, sampling: SamplingBatch) -> VerifyResult:
        windows = Windows.of(draft)
        scores = sampling.process(logits, windows.index, windows.offsets, windows.paths)
        own = sampling.choose(scores, windows.index, windows.offsets)
        passed = np.zeros(draft.tokens.shape, dtype=np.bool_)
        drafted = windows.drafted
        if len(drafted):
            index, offsets = windows.index[drafted], windows.offsets[drafted]
            tokens = on_device(scores, draft.tokens[index, offsets])
            at = on_device(scores, drafted)
            where = scores.index_select(0, at)
            allowed = where.gather(1, tokens.unsqueeze(1)).squeeze(1) > -torch.inf
            good = (self.good_enough(where, tokens, index, sampling) & allowed) | (own.index_select(0, at) == tokens)
            passed[index, offsets] = good.cpu().numpy()
        accepted = accepted_run(passed)
        return VerifyResult(accepted, own.cpu().numpy()[windows.starts + accepted])


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

    def good_enough(self, scores: torch.Tensor, tokens: torch.Tensor, *_: object) -> torch.Tensor:
        own = scores.gather(1, tokens.unsqueeze(1))
        p = (own - scores.logsumexp(1, keepdim=True)).exp_().squeeze(1)
        among_top = (scores > own).sum(1) < self.top
        return (p >= self.high) | ((p >= self.low) & among_top)


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

    def good_enough(
        self, scores: torch.Tensor, tokens: torch.Tensor, index: IntArray, sampling: SamplingBatch
    ) -> torch.Tensor:
        p = sampling.probabilities(scores, index)
        entropy = torch.special.entr(p).sum(1)
        floor = (self.delta * torch.exp(-entropy)).clamp_(max=self.epsilon)
        return p.gather(1, tokens.unsqueeze(1)).squeeze(1) > floor

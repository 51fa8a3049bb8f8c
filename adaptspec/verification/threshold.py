"""`threshold` verification (lossy): keep what the target finds likely enough. Knows scores and marks."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from adaptspec.models.draft import Draft
from adaptspec.models.sampling import SamplingBatch
from adaptspec.types import IntArray
from adaptspec.verification.lossy import relaxed
from adaptspec.verification.method import Verdict


@dataclass(frozen=True)
class Threshold:
    """Keep a drafted x if p(x) >= high, or if p(x) >= low and x is among the target's `top` likeliest; else reject.

    p is the softmax of the processed scores, also for greedy rows (there it is that of temperature 1): the marks then
    say how far from the argmax the text may stray. The first rejected token is replaced by the target's own.
    """

    high: float = 0.3
    low: float = 0.05
    top: int = 3

    name = "threshold"
    lossy = True
    shares_noise = True
    needs_distribution = False

    def verify(self, logits: torch.Tensor, draft: Draft, sampling: SamplingBatch) -> Verdict:
        """See `Method.verify`."""
        return relaxed(logits, draft, sampling, self._likely)

    def _likely(self, scores: torch.Tensor, tokens: torch.Tensor, index: IntArray) -> torch.Tensor:  # noqa: ARG002
        own = scores.gather(1, tokens.unsqueeze(1))
        p = (own - scores.logsumexp(1, keepdim=True)).exp_().squeeze(1)
        among_top = (scores > own).sum(1) < self.top
        return (p >= self.high) | ((p >= self.low) & among_top)

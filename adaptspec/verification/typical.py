"""`typical` verification (lossy): keep what is typical of the target's distribution. Knows scores and two numbers."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from adaptspec.models.draft import Draft
from adaptspec.models.sampling import SamplingBatch
from adaptspec.types import IntArray
from adaptspec.verification.lossy import relaxed
from adaptspec.verification.method import Verdict


@dataclass(frozen=True)
class Typical:
    """Keep a drafted x if p(x) > min(epsilon, delta * exp(-H(p))), H the entropy in nats of the target's distribution.

    The surer the target, the likelier a token must be; where many would do, one of probability epsilon is enough.
    Greedy rows have a point mass for p, so that for them the text stays exact. The first rejected token is
    replaced by the target's own. Source: Cai et al. 2024, "Medusa", section 2.3.2 (typical acceptance).
    """

    epsilon: float = 0.09
    delta: float = 0.3

    name = "typical"
    lossy = True
    shares_noise = True
    needs_distribution = False

    def verify(self, logits: torch.Tensor, draft: Draft, sampling: SamplingBatch) -> Verdict:
        """See `Method.verify`."""

        def typical(scores: torch.Tensor, tokens: torch.Tensor, index: IntArray) -> torch.Tensor:
            p = sampling.probabilities(scores, index)
            entropy = torch.special.entr(p).sum(1)
            floor = (self.delta * torch.exp(-entropy)).clamp_(max=self.epsilon)
            return p.gather(1, tokens.unsqueeze(1)).squeeze(1) > floor

        return relaxed(logits, draft, sampling, typical)

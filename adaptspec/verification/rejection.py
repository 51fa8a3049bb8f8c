"""`rejection` verification: keep drafted tokens with a probability that makes the output the target's in distribution.

Knows the probabilities of drafted tokens and uniform numbers; how a round is gathered and goes on is in `speculative`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from adaptspec.models.draft import Draft
from adaptspec.models.sampling import SamplingBatch
from adaptspec.types import FloatArray
from adaptspec.verification.method import Verdict
from adaptspec.verification.speculative import Drafted, Judgement, speculative
from adaptspec.verification.windows import accepted_run


@dataclass(frozen=True)
class Rejection:
    """Accept a drafted x with probability min(1, p(x) / q(x)); after a rejection draw from normalize(max(p - q, 0)).

    P(emit x) = min(p, q)(x) + (1 - sum(min(p, q))) * max(p - q, 0)(x) / sum(max(p - q, 0)) = p(x), as both sums over
    the rest are equal. If all are accepted, the bonus is drawn from p. Drafts without a distribution
    are point masses: accept with p(x), else draw from p without x. Source: Leviathan et al. 2023, Chen et al. 2023.
    """

    name = "rejection"
    lossy = False
    shares_noise = False
    needs_distribution = True

    def verify(self, logits: torch.Tensor, draft: Draft, sampling: SamplingBatch) -> Verdict:
        """See `Method.verify`."""
        return speculative(logits, draft, sampling, _one_by_one)


def _one_by_one(draft: Draft, drafted: Drafted, numbers: FloatArray) -> Judgement:
    """Keep tokens up to the first whose uniform number fails its test."""
    passed = np.zeros(draft.tokens.shape, dtype=np.bool_)
    # u < p / q without the division; strict, so that p = 0 never passes.
    passed[drafted.index, drafted.offsets] = numbers * drafted.q < drafted.p
    return Judgement(accepted_run(passed), np.ones(len(passed)))

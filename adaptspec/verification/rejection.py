"""`rejection` verification: keep drafted tokens with a probability that makes the output the target's in distribution.

Knows distributions and uniform numbers; nothing of how drafts were made, except that they were drawn
from `Draft.distribution` with noise of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from adaptspec.models.draft import Draft
from adaptspec.models.sampling import SamplingBatch, Stream
from adaptspec.types import BoolArray, IntArray
from adaptspec.verification.method import Verdict
from adaptspec.verification.windows import Windows, accepted_run, agreement, on_device


@dataclass(frozen=True)
class Rejection:
    """Accept a drafted x with probability min(1, p(x) / q(x)); after a rejection draw from normalize(max(p - q, 0)).

    P(emit x) = min(p, q)(x) + (1 - sum(min(p, q))) * max(p - q, 0)(x) / sum(max(p - q, 0)) = p(x), as both sums over
    the rest are equal. If all are accepted, the bonus is drawn from p. Drafts without a distribution
    are point masses: accept with p(x), else draw from p without x. Every token that is not a draft's is drawn with the
    noise plain decoding would use, which nothing in the draft or the acceptance depends on. Source:
    Leviathan et al. 2023, Chen et al. 2023.
    """

    name = "rejection"
    lossy = False
    shares_noise = False
    needs_distribution = True

    def verify(self, logits: torch.Tensor, draft: Draft, sampling: SamplingBatch) -> Verdict:
        """See `Method.verify`."""
        windows = Windows.of(draft.counts)
        scores = sampling.process(logits, windows.index, windows.offsets, draft.tokens)
        if sampling.plain_greedy:  # p and q are point masses: accepted iff equal
            return agreement(draft, sampling.choose(scores, windows.index, windows.offsets))
        target = sampling.probabilities(scores, windows.index)
        accepted = accepted_run(_accept(target, draft, sampling, windows))
        ends = windows.starts + accepted
        final = scores.index_select(0, on_device(scores, ends))
        rejected = np.flatnonzero(accepted < windows.counts)
        if len(rejected):
            left = _residual(
                target.index_select(0, on_device(scores, ends[rejected])), draft, rejected, accepted[rejected]
            )
            final.index_copy_(0, on_device(scores, rejected), left)
        following = sampling.choose(final, np.arange(len(accepted)), accepted)
        return Verdict(accepted, following.cpu().numpy())


def _accept(target: torch.Tensor, draft: Draft, sampling: SamplingBatch, windows: Windows) -> BoolArray:
    """Which drafted tokens pass their own test, [B, D]; False where none was drafted."""
    passed = np.zeros(draft.tokens.shape, dtype=np.bool_)
    drafted = np.flatnonzero(windows.offsets < windows.counts[windows.index])
    if not len(drafted):
        return passed
    index, offsets = windows.index[drafted], windows.offsets[drafted]
    tokens = draft.tokens[index, offsets]
    p = target[on_device(target, drafted), on_device(target, tokens)]
    if draft.distribution is None:
        q = torch.ones_like(p)
    else:
        q = draft.distribution[on_device(target, index), on_device(target, offsets), on_device(target, tokens)]
    both = torch.stack((p, q)).double().cpu().numpy()
    # u < p / q without the division; strict, so that p = 0 never passes.
    passed[index, offsets] = sampling.uniform(index, offsets, Stream.ACCEPT) * both[1] < both[0]
    return passed


def _residual(p: torch.Tensor, draft: Draft, rows: IntArray, offsets: IntArray) -> torch.Tensor:
    """Scores [R, V] of what is left of p [R, V] once the rejected token's distribution is taken off."""
    if draft.distribution is None:
        rejected = on_device(p, draft.tokens[rows, offsets]).unsqueeze(1)
        left = p.scatter(1, rejected, 0.0)
    else:
        left = (p - draft.distribution[on_device(p, rows), on_device(p, offsets)]).clamp_(min=0.0)
    # p = q up to rounding can be rejected, once in ten million draws, with nothing left: then p itself is right.
    empty = left.amax(1, keepdim=True) <= 0.0
    return torch.where(empty, p, left).log_()

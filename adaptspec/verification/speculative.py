"""What the methods of speculative sampling share: gather p and q, let a method judge, and draw what follows.

Knows distributions and positions; which tokens are kept, and how much of p is left to draw from, is a method's own
affair. Drafts must have been drawn from `Draft.distribution` with noise of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from adaptspec.models.draft import Draft
from adaptspec.models.sampling import SamplingBatch, Stream
from adaptspec.types import FloatArray, IntArray
from adaptspec.verification.method import Verdict
from adaptspec.verification.windows import Windows, agreement, on_device


@dataclass(frozen=True)
class Drafted:
    """The M positions that hold a drafted token, in packed order; drafts without a distribution are point masses."""

    packed: IntArray  # [M] place among all N positions, ascending
    index: IntArray  # [M] row
    offsets: IntArray  # [M] place in the row's draft
    tokens: IntArray  # [M]
    p: FloatArray  # [M] the target's probability of the token
    q: FloatArray  # [M] the draft's
    target: torch.Tensor  # [N, V] p everywhere
    distribution: torch.Tensor | None  # [B, D, V] q; None: 1 at the token

    @classmethod
    def of(cls, target: torch.Tensor, draft: Draft, windows: Windows) -> Drafted:
        """Gather them from the target's probabilities [N, V]."""
        packed = np.flatnonzero(windows.offsets < windows.counts[windows.index])
        index, offsets = windows.index[packed], windows.offsets[packed]
        tokens = draft.tokens[index, offsets]
        p = target[on_device(target, packed), on_device(target, tokens)]
        q = torch.ones_like(p)
        if draft.distribution is not None:
            q = draft.distribution[tuple(on_device(target, numbers) for numbers in (index, offsets, tokens))]
        both = torch.stack((p, q)).double().cpu().numpy()
        return cls(packed, index, offsets, tokens, both[0], both[1], target, draft.distribution)

    def left(self, which: IntArray | slice, weights: FloatArray) -> torch.Tensor:
        """max(0, w p - q) over the vocabulary, [R, V], for R of the M positions and a weight w for each."""
        w = torch.from_numpy(weights).to(self.target).unsqueeze(1)
        weighted = self.target.index_select(0, on_device(self.target, self.packed[which])) * w
        if self.distribution is None:
            certain = on_device(self.target, self.tokens[which]).unsqueeze(1)
            return weighted.scatter_add_(1, certain, -torch.ones_like(w)).clamp_(min=0.0)
        at = (on_device(self.target, numbers[which]) for numbers in (self.index, self.offsets))
        return weighted.sub_(self.distribution[tuple(at)]).clamp_(min=0.0)


@dataclass(frozen=True)
class Judgement:
    """How many tokens of each row are kept, and what p is multiplied by in max(0, w p - q) where the draft is cut."""

    accepted: IntArray  # [B]
    weights: FloatArray  # [B]; means nothing where all were kept


Judge = Callable[[Draft, Drafted, FloatArray], Judgement]
"""The draft, its M tokens, and a uniform number in [0, 1) for each, [M]."""


def speculative(logits: torch.Tensor, draft: Draft, sampling: SamplingBatch, judge: Judge) -> Verdict:
    """Keep what `judge` keeps; then draw from what is left of p where the draft is cut, from p where it is not.

    Every token that is not a draft's is drawn with the noise plain decoding would use, which nothing in
    the draft or the acceptance depends on. `logits` are as in `Method.verify`.
    """
    windows = Windows.of(draft.counts)
    scores = sampling.process(logits, windows.index, windows.offsets, draft.tokens)
    if sampling.plain_greedy:  # p and q are point masses: accepted iff equal
        return agreement(draft, sampling.choose(scores, windows.index, windows.offsets))
    target = sampling.probabilities(scores, windows.index)
    drafted = Drafted.of(target, draft, windows)
    judgement = judge(draft, drafted, sampling.uniform(drafted.index, drafted.offsets, Stream.ACCEPT))
    accepted = judgement.accepted
    ends = windows.starts + accepted
    final = scores.index_select(0, on_device(scores, ends))
    cut = np.flatnonzero(accepted < windows.counts)
    if len(cut):
        left = drafted.left(np.searchsorted(drafted.packed, ends[cut]), judgement.weights[cut])
        # p = q up to rounding can be rejected, once in ten million draws, with nothing left: then p itself is right.
        empty = left.amax(1, keepdim=True) <= 0.0
        plain = target.index_select(0, on_device(target, ends[cut]))
        final.index_copy_(0, on_device(final, cut), torch.where(empty, plain, left).log_())
    following = sampling.choose(final, np.arange(len(accepted)), accepted)
    return Verdict(accepted, following.cpu().numpy())

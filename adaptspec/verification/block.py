"""`block` verification: speculative sampling that judges a draft as a whole, and never accepts fewer tokens.

Knows distributions and uniform numbers; nothing of how drafts were made, except that they were drawn
from `Draft.distribution` with noise of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from adaptspec.models.draft import Draft
from adaptspec.models.sampling import SamplingBatch, Stream
from adaptspec.types import FloatArray, IntArray
from adaptspec.verification.method import Verdict
from adaptspec.verification.windows import Windows, agreement, on_device


@dataclass(frozen=True)
class Block:
    """Keep the longest prefix that passes its own test, though a shorter one may have failed.

    With q_i what drafted token x_i was drawn from and p_i the target there, both after the i - 1 tokens before,

        w_0 = 1,  w_i = min(1, w_{i-1} p_i(x_i) / q_i(x_i)),  rest_i = sum of max(0, w_i p_{i+1} - q_{i+1}),
        h_i = rest_i / (rest_i + 1 - w_i) for a token with a successor, h_n = w_n for the last one,

    token i passes with probability h_i, each by a number of its own; the last to pass, a, and all before it are
    kept. After a < n follows a draw from max(0, w_a p_{a+1} - q_{a+1}), normalised; after all of them one from p_{n+1}.
    By induction from the end, P(at least i are kept | x_1..x_i) = w_i: since sum of min(w_i p, q) over the next token
    is w_i - rest_i, it is (w_i - rest_i) + (1 - w_i + rest_i) h_i. This holds along every path of its own, so the
    draft may end where a stop rule saw fit after x_n. And w_i is at least the product of the single ratios,
    each cut at 1, by which token-wise `rejection` keeps them. Point masses have q_i = 1 at x_i.
    Source: Sun et al. 2024, "Block Verification Accelerates Speculative Decoding".
    """

    name = "block"
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
        drafted = _Drafted.of(draft, windows)
        weights = _weights(target, draft, drafted)
        left = _left(target, draft, drafted, weights)
        numbers = sampling.uniform(drafted.index, drafted.offsets, Stream.ACCEPT)
        accepted = _longest(left, draft, drafted, weights, numbers)
        ends = windows.starts + accepted
        final = scores.index_select(0, on_device(scores, ends))
        cut = np.flatnonzero(accepted < windows.counts)
        if len(cut):
            # `drafted.packed` ascends: that is where the remainders of these positions are found.
            remainder = left.index_select(0, on_device(left, np.searchsorted(drafted.packed, ends[cut])))
            plain = target.index_select(0, on_device(target, ends[cut]))
            # p = q up to rounding leaves nothing; then p itself is right.
            empty = remainder.amax(1, keepdim=True) <= 0.0
            final.index_copy_(0, on_device(final, cut), torch.where(empty, plain, remainder).log())
        following = sampling.choose(final, np.arange(len(accepted)), accepted)
        return Verdict(accepted, following.cpu().numpy())


@dataclass(frozen=True)
class _Drafted:
    """The M positions that hold a drafted token, in packed order."""

    packed: IntArray
    index: IntArray  # row
    offsets: IntArray  # place in the row's draft
    tokens: IntArray

    @classmethod
    def of(cls, draft: Draft, windows: Windows) -> _Drafted:
        packed = np.flatnonzero(windows.offsets < windows.counts[windows.index])
        index, offsets = windows.index[packed], windows.offsets[packed]
        return cls(packed, index, offsets, draft.tokens[index, offsets])


def _weights(target: torch.Tensor, draft: Draft, drafted: _Drafted) -> FloatArray:
    """w_0 to w_D of each row, [B, D + 1]; what stands beyond a row's count means nothing."""
    index, offsets = drafted.index, drafted.offsets
    p = target[on_device(target, drafted.packed), on_device(target, drafted.tokens)]
    q = torch.ones_like(p)
    if draft.distribution is not None:
        at = (on_device(target, numbers) for numbers in (index, offsets, drafted.tokens))
        q = draft.distribution[tuple(at)]
    both = torch.stack((p, q)).double().cpu().numpy()
    ratios: FloatArray = np.zeros(draft.tokens.shape)
    ratios[index, offsets] = both[0] / both[1]
    weights = np.ones((len(ratios), ratios.shape[1] + 1))
    for step in range(ratios.shape[1]):
        weights[:, step + 1] = np.minimum(1.0, weights[:, step] * ratios[:, step])
    return weights


def _left(target: torch.Tensor, draft: Draft, drafted: _Drafted, weights: FloatArray) -> torch.Tensor:
    """max(0, w_i p_{i+1} - q_{i+1}) for every position with a drafted token, [M, V]."""
    index, offsets = drafted.index, drafted.offsets
    w = torch.from_numpy(weights[index, offsets]).to(target).unsqueeze(1)
    weighted = target.index_select(0, on_device(target, drafted.packed)) * w
    if draft.distribution is None:
        certain = on_device(target, drafted.tokens).unsqueeze(1)
        return weighted.scatter_add_(1, certain, -torch.ones_like(w)).clamp_(min=0.0)
    return (weighted - draft.distribution[on_device(target, index), on_device(target, offsets)]).clamp_(min=0.0)


def _longest(left: torch.Tensor, draft: Draft, drafted: _Drafted, weights: FloatArray, numbers: FloatArray) -> IntArray:
    """How many tokens are kept: the last whose uniform number passes its own test, [B]."""
    index, offsets = drafted.index, drafted.offsets
    rest: FloatArray = np.zeros(draft.tokens.shape)
    rest[index, offsets] = left.double().sum(1).cpu().numpy()
    w = weights[index, offsets + 1]
    after = rest[index, np.minimum(offsets + 1, rest.shape[1] - 1)]
    below = after + 1.0 - w
    # 0 / 0 is p = q after a draft that is sure to be kept: kept.
    passing = np.divide(after, below, out=np.ones_like(w), where=below > 0.0)
    passing = np.where(offsets + 1 == draft.counts[index], w, passing)
    passed = numbers < passing  # strict, so that a token of probability 0 never passes
    accepted: IntArray = np.zeros(len(draft.counts), dtype=np.int64)
    np.maximum.at(accepted, index[passed], offsets[passed] + 1)
    return accepted

"""`block` verification: speculative sampling that judges a draft as a whole, and never accepts fewer tokens.

Knows the probabilities of drafted tokens and uniform numbers; how a round is gathered and goes on is in `speculative`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from adaptspec.models.draft import Draft
from adaptspec.models.sampling import SamplingBatch
from adaptspec.types import FloatArray, IntArray
from adaptspec.verification.method import Verdict
from adaptspec.verification.speculative import Drafted, Judgement, speculative


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
        return speculative(logits, draft, sampling, _longest)


def _longest(draft: Draft, drafted: Drafted, numbers: FloatArray) -> Judgement:
    """Keep all up to the last token whose uniform number passes its own test."""
    weights = _weights(draft, drafted)
    index, offsets = drafted.index, drafted.offsets
    rest: FloatArray = np.zeros(draft.tokens.shape)
    rest[index, offsets] = drafted.left(slice(None), weights[index, offsets]).double().sum(1).cpu().numpy()
    w = weights[index, offsets + 1]
    after = rest[index, np.minimum(offsets + 1, rest.shape[1] - 1)]
    below = after + 1.0 - w
    # 0 / 0 is p = q after a draft that is sure to be kept: kept.
    passing = np.divide(after, below, out=np.ones_like(w), where=below > 0.0)
    passing = np.where(offsets + 1 == draft.counts[index], w, passing)
    passed = numbers < passing  # strict, so that a token of probability 0 never passes
    accepted: IntArray = np.zeros(len(draft.counts), dtype=np.int64)
    np.maximum.at(accepted, index[passed], offsets[passed] + 1)
    return Judgement(accepted, weights[np.arange(len(accepted)), accepted])


def _weights(draft: Draft, drafted: Drafted) -> FloatArray:
    """w_0 to w_D of each row, [B, D + 1]; what stands beyond a row's count means nothing."""
    ratios: FloatArray = np.zeros(draft.tokens.shape)
    ratios[drafted.index, drafted.offsets] = drafted.p / drafted.q
    weights = np.ones((len(ratios), ratios.shape[1] + 1))
    for step in range(ratios.shape[1]):
        weights[:, step + 1] = np.minimum(1.0, weights[:, step] * ratios[:, step])
    return weights

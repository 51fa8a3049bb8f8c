"""`rejection` and `block`: speculative sampling, which preserves the target's distribution p.

Drafts are chains, sampled from `DraftTree.distribution` (q) with independent noise; without one they are point masses.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np

from adaptspec.arrays import FloatArray, IntArray
from adaptspec.draft_tree import DraftTree
from adaptspec.models.noise import Floats, Stream
from adaptspec.models.sampling import Logits, SamplingBatch
from adaptspec.progress import report_progress
from adaptspec.verification.method import (
    Method,
    Positions,
    VerifyResult,
    accepted_run,
    node_parents,
    position_starts,
    walk,
)


class SpeculativeSampling(Method):
    """Accepts tokens by `accept`, then draws the next one: from the residual of p after a rejection, else from p.

    The next token is drawn with the noise of decoding without speculation, which is independent of the draft and of
    the acceptance.
    """

    shares_noise = False
    needs_distribution = True

    @abstractmethod
    def accept(self, drafted: _Drafted, numbers: FloatArray) -> tuple[IntArray, FloatArray]:
        """The number of accepted tokens [B], given a uniform number in [0, 1) for each of the N drafted tokens, and the
        weight w [B] of p in the residual max(0, w p - q); the weight is unused in rows that accept all tokens.
        """

    def verify(self, logits: Logits, draft: DraftTree, sampling: SamplingBatch) -> VerifyResult:
        positions = Positions.of(draft)
        if sampling.plain_greedy:  # p and q are point masses: accepted iff equal
            return walk(draft, sampling.next_tokens(logits, positions.row, positions.paths))
        scores = sampling.process(logits, positions.row, positions.paths)
        target = sampling.probabilities(scores, positions.row)
        drafted = _Drafted.of(target, draft)
        accepted, weights = self.accept(drafted, sampling.uniform(draft.row, draft.index, Stream.ACCEPT))
        ends = position_starts(draft) + accepted
        final = scores[ends]
        cut = np.flatnonzero(accepted < draft.counts)
        if len(cut):
            residual = drafted.residual((draft.offsets[:-1] + accepted)[cut], weights[cut])
            # If p = q up to rounding, a rejection (once in ten million draws) may leave no residual; p is exact then.
            empty = residual.max(axis=1, keepdims=True) <= 0.0
            unchanged = target[ends[cut]]
            with np.errstate(divide="ignore"):
                final[cut] = np.log(np.where(empty, unchanged, residual))
        return VerifyResult.of_chains(accepted, sampling.choose(final, np.arange(len(accepted)), accepted))


@dataclass(frozen=True)
class Rejection(SpeculativeSampling):
    """Accept a drafted x with probability min(1, p(x) / q(x)); after a rejection draw from normalize(max(p - q, 0)).

    P(emit x) = min(p, q)(x) + (1 - sum(min(p, q))) * max(p - q, 0)(x) / sum(max(p - q, 0)) = p(x), as both sums over
    the rest are equal. If all are accepted, the bonus is drawn from p. Drafts without a distribution
    are point masses: accept with p(x), else draw from p without x. Source: Leviathan et al. 2023, Chen et al. 2023.
    """

    name = "rejection"

    def accept(self, drafted: _Drafted, numbers: FloatArray) -> tuple[IntArray, FloatArray]:
        # u < p / q without the division; strict, so that p = 0 never passes.
        accepted = accepted_run(drafted.draft, numbers * drafted.q < drafted.p)
        return accepted, np.ones(len(accepted))


@dataclass(frozen=True)
class Block(SpeculativeSampling):
    """Accept the longest prefix that passes its own test, even if a shorter one has failed.

    With q_i the distribution that drafted token x_i was sampled from, and p_i the target's, both after i - 1 tokens,

        w_0 = 1,  w_i = min(1, w_{i-1} p_i(x_i) / q_i(x_i)),  rest_i = sum of max(0, w_i p_{i+1} - q_{i+1}),
        h_i = rest_i / (rest_i + 1 - w_i) for a token with a successor, h_n = w_n for the last one,

    token i passes with probability h_i, by an independent uniform number. The last token that passes, a, and all before
    it are accepted. The next token is drawn from max(0, w_a p_{a+1} - q_{a+1}), normalised, or from p_{n+1} if a = n.
    By induction from the end, P(at least i are accepted | x_1..x_i) = w_i: since the sum of min(w_i p, q) over the next
    token is w_i - rest_i, it is (w_i - rest_i) + (1 - w_i + rest_i) h_i. This holds for each path, so a stop
    rule may end the draft after any x_n. w_i is at least the product of the single ratios, each capped at 1, with which
    token-wise `rejection` accepts tokens. Point masses have q_i = 1 at x_i.
    Source: Sun et al. 2024, "Block Verification Accelerates Speculative Decoding".
    """

    name = "block"

    def accept(self, drafted: _Drafted, numbers: FloatArray) -> tuple[IntArray, FloatArray]:
        """Accept all tokens up to the last one whose uniform number passes its test."""
        draft, row, index = drafted.draft, drafted.draft.row, drafted.draft.index
        weights = _block_weights(drafted)  # [B, D + 1]
        before = weights[row, index]
        w = weights[row, index + 1]
        # rest_i sums over the token after x_i, so it is computed at the next node, with the weight after x_i.
        rest = drafted.residual(np.arange(len(row)), before).sum(axis=1, dtype=np.float64)
        is_last = index + 1 == draft.counts[row]
        after = np.where(is_last, 0.0, np.append(rest[1:], 0.0))
        denominator = after + 1.0 - w
        # 0 / 0 means p = q after a draft that is accepted with probability 1: it passes.
        passing = np.divide(after, denominator, out=np.ones_like(w), where=denominator > 0.0)
        passing = np.where(is_last, w, passing)
        passed = numbers < passing  # strict, so that a token of probability 0 never passes
        accepted: IntArray = np.zeros(len(draft.chain), dtype=np.int64)
        np.maximum.at(accepted, row[passed], index[passed] + 1)
        return accepted, weights[np.arange(len(accepted)), accepted]


@dataclass(frozen=True)
class _Drafted:
    """The N drafted tokens with the probabilities of the target and of the draft."""

    draft: DraftTree
    p: FloatArray  # [N] the target's probability of the token
    q: FloatArray  # [N] the draft's; 1 for point masses
    target: Floats  # [N, V] the target's distribution at each node's parent

    @classmethod
    def of(cls, target: Floats, draft: DraftTree) -> _Drafted:
        """`target` [N + B, V] are the target's distributions at all packed positions."""
        nodes, before = np.arange(len(draft.token)), target[node_parents(draft)]
        p = before[nodes, draft.token].astype(np.float64)
        q = np.ones_like(p) if draft.distribution is None else draft.distribution[nodes, draft.token].astype(np.float64)
        return cls(draft, p, q, before)

    def residual(self, nodes: IntArray, weights: FloatArray) -> Floats:
        """max(0, w p - q) over the vocabulary [R, V], for R nodes and a weight w for each."""
        report_progress()
        weighted: Floats = self.target[nodes] * weights.astype(np.float32)[:, None]
        if self.draft.distribution is None:
            weighted[np.arange(len(weighted)), self.draft.token[nodes]] -= 1.0
        else:
            weighted -= self.draft.distribution[nodes]
        return np.maximum(weighted, 0.0, out=weighted)


def _block_weights(drafted: _Drafted) -> FloatArray:
    """w_0 to w_D of each row, [B, D + 1]; values beyond a row's last node are undefined."""
    draft = drafted.draft
    ratios = np.nan_to_num(draft.on_chain(drafted.p / drafted.q))
    weights = np.ones((len(ratios), ratios.shape[1] + 1))
    for step in range(ratios.shape[1]):
        weights[:, step + 1] = np.minimum(1.0, weights[:, step] * ratios[:, step])
    return weights

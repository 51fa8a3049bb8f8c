"""`coupled` verification: accept a drafted token iff it is the token that the target draws at its position."""

from __future__ import annotations

from dataclasses import dataclass

from adaptspec.draft_tree import DraftTree
from adaptspec.models.sampling import Logits, SamplingBatch
from adaptspec.verification.method import Method, Positions, VerifyResult, walk


@dataclass(frozen=True)
class Coupled(Method):
    """The target draws y_t = argmax(score_t + Gumbel(seed, t)) at every position; equal drafted tokens are accepted.

    y_t depends on the context, seed and position only, so the output is that of decoding without speculation, token for
    token, whatever was drafted. Drafts that are sampled with the same noise agree most often. Greedy rows have no
    noise: y_t is the argmax. Source: Daliri, Musco, Suresh, "Coupling without communication and drafter-invariant
    speculative decoding", 2024.
    """

    name = "coupled"
    takes_trees = True

    def verify(self, logits: Logits, draft: DraftTree, sampling: SamplingBatch) -> VerifyResult:
        positions = Positions.of(draft)
        return walk(draft, sampling.next_tokens(logits, positions.row, positions.paths))

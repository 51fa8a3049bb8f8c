"""What a drafter hands to verification: the drafted tokens of one round, and how sure it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from adaptspec.types import FloatArray, IntArray


@dataclass(frozen=True)
class Draft:
    """Drafted tokens of B rows, padded to the deepest of them (D columns).

    `distribution` [B, D, V] is what each token was sampled from, after all processors; it is kept
    only for methods that need it. None means the tokens are point masses (n-gram drafts) or nobody asked.
    `scores` [B, D, V] are the draft's own scores, before any draft temperature, kept when they are to be compared
    with the target's; `confidence` and `entropy` are always those of the draft's own distribution.
    """

    tokens: IntArray  # [B, D], 0 beyond counts
    counts: IntArray  # [B] tokens submitted for verification
    confidence: FloatArray  # [B, D] probability of the drafted token, NaN where none was drafted
    entropy: FloatArray  # [B, D] nats, NaN where none was drafted
    distribution: torch.Tensor | None = None
    steps: int = 0  # forward passes of a draft model
    caught_up: int = 0  # tokens fed beyond the usual one or two per row
    scores: torch.Tensor | None = None

    @classmethod
    def empty(cls, rows: int, depth: int = 0) -> Draft:
        """Nothing drafted for any row, with room for `depth` tokens each."""
        shape = rows, depth
        tokens, counts = np.zeros(shape, dtype=np.int64), np.zeros(rows, dtype=np.int64)
        return cls(tokens, counts, np.full(shape, np.nan), np.full(shape, np.nan))

    @classmethod
    def merged(cls, parts: Sequence[Draft]) -> Draft:
        """Parts that draft for different rows as one; point masses where only some parts have a distribution."""
        deepest = max(part.tokens.shape[1] for part in parts)
        wide = [part.padded(deepest) for part in parts]
        first = wide[0]
        tokens, confidence, entropy = first.tokens.copy(), first.confidence.copy(), first.entropy.copy()
        for part in wide[1:]:
            mine = part.counts > 0
            tokens[mine], confidence[mine], entropy[mine] = part.tokens[mine], part.confidence[mine], part.entropy[mine]
        return cls(
            tokens,
            np.sum([part.counts for part in wide], axis=0),
            confidence,
            entropy,
            _merged_distributions(wide),
            scores=_merged_scores(wide),
            steps=sum(part.steps for part in parts),
            caught_up=sum(part.caught_up for part in parts),
        )

    def padded(self, deepest: int) -> Draft:
        """The same with so many columns."""
        width = deepest - self.tokens.shape[1]
        if not width:
            return self
        columns = [(0, 0), (0, width)]
        distribution, scores = (
            None if kept is None else torch.nn.functional.pad(kept, (0, 0, 0, width))
            for kept in (self.distribution, self.scores)
        )
        return replace(
            self,
            tokens=np.pad(self.tokens, columns),
            confidence=np.pad(self.confidence, columns, constant_values=np.nan),
            entropy=np.pad(self.entropy, columns, constant_values=np.nan),
            distribution=distribution,
            scores=scores,
        )

    def take(self, rows: IntArray) -> Draft:
        """The tokens of some rows, by position, for verification."""
        distribution = None if self.distribution is None else self.distribution[torch.from_numpy(rows)]
        return Draft(self.tokens[rows], self.counts[rows], self.confidence[rows], self.entropy[rows], distribution)

    def cut(self, counts: IntArray) -> Draft:
        """The first `counts` [B] tokens of each row; `scores` and `distribution` keep what nobody reads any more."""
        inside = np.arange(self.tokens.shape[1]) < counts[:, None]
        return replace(
            self,
            tokens=np.where(inside, self.tokens, 0),
            counts=counts,
            confidence=np.where(inside, self.confidence, np.nan),
            entropy=np.where(inside, self.entropy, np.nan),
        )


def _merged_distributions(parts: Sequence[Draft]) -> torch.Tensor | None:
    kept = next((part.distribution for part in parts if part.distribution is not None), None)
    if kept is None:
        return None
    whole = torch.zeros_like(kept)
    for part in parts:
        mine = torch.from_numpy(part.counts > 0)
        if part.distribution is not None:
            whole[mine] = part.distribution[mine]
        else:
            point = torch.nn.functional.one_hot(torch.from_numpy(part.tokens[part.counts > 0]), whole.shape[-1])
            whole[mine] = point.to(whole)
    return whole


def _merged_scores(parts: Sequence[Draft]) -> torch.Tensor | None:
    """Scores of the parts that kept them; what stands elsewhere is never read, as no entropy is known there."""
    kept = next((part.scores for part in parts if part.scores is not None), None)
    if kept is None:
        return None
    whole = torch.zeros_like(kept)
    for part in parts:
        if part.scores is not None:
            mine = torch.from_numpy(part.counts > 0)
            whole[mine] = part.scores[mine]
    return whole

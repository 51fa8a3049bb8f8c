"""What a drafter hands to verification: the drafted tokens of one round, and how sure it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F

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
        rows, depth = len(parts[0].counts), max(part.tokens.shape[1] for part in parts)
        whole = replace(
            cls.empty(rows, depth),
            distribution=_room([part.distribution for part in parts], rows, depth),
            scores=_room([part.scores for part in parts], rows, depth),
            steps=sum(part.steps for part in parts),
            caught_up=sum(part.caught_up for part in parts),
        )
        for part in parts:
            whole._put(part)
        return whole

    def _put(self, part: Draft) -> None:
        """Fill in the rows that `part` drafts for; scores of no draft model stay 0: no entropy is known there."""
        mine, width = np.flatnonzero(part.counts), part.tokens.shape[1]
        self.counts[mine] = part.counts[mine]
        self.tokens[mine, :width] = part.tokens[mine]
        self.confidence[mine, :width] = part.confidence[mine]
        self.entropy[mine, :width] = part.entropy[mine]
        at = torch.from_numpy(mine)
        if self.distribution is not None:
            shares = part.distribution
            if shares is None:
                shares = F.one_hot(torch.from_numpy(part.tokens), self.distribution.shape[-1]).to(self.distribution)
            self.distribution[at, :width] = shares[at]
        if self.scores is not None and part.scores is not None:
            self.scores[at, :width] = part.scores[at]

    def take(self, rows: IntArray) -> Draft:
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


def _room(kept: Sequence[torch.Tensor | None], rows: int, depth: int) -> torch.Tensor | None:
    """Zeros [rows, depth, V], if any part kept something."""
    like = next((part for part in kept if part is not None), None)
    return None if like is None else like.new_zeros(rows, depth, like.shape[-1])

"""What a drafter hands to verification: the drafted tokens of one round, and how sure it was."""

from __future__ import annotations

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

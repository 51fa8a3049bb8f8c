"""`coupled` verification: keep a drafted token iff it is the very token the target draws at its position."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from adaptspec.models.draft import Draft
from adaptspec.models.processors import NO_PATHS
from adaptspec.models.sampling import SamplingBatch
from adaptspec.types import IntArray
from adaptspec.verification.method import Method, VerifyResult, Windows, agreement

_NONE: IntArray = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class Coupled(Method):
    """The target draws y_t = argmax(score_t + Gumbel(seed, t)) all along the window; drafts that equal it stay.

    Since y_t is a function of the context, seed and position alone, the output is that of plain decoding, token for
    token, whatever was drafted; a draft that guesses with the same noise agrees most often. Greedy
    rows have no noise: y_t is the argmax. Source: Daliri, Musco, Suresh, "Coupling without communication
    and drafter-invariant speculative decoding", 2024.
    """

    name = "coupled"
    takes_trees = True

    def verify(self, logits: torch.Tensor, draft: Draft, sampling: SamplingBatch) -> VerifyResult:
        if sampling.plain_greedy:  # neither position nor row matters, so the layout need not be worked out
            return agreement(draft, sampling.choose(sampling.process(logits, _NONE, _NONE, NO_PATHS), _NONE, _NONE))
        windows = Windows.of(draft)
        scores = sampling.process(logits, windows.index, windows.offsets, windows.paths)
        return agreement(draft, sampling.choose(scores, windows.index, windows.offsets))

"""The protocol of a verification method: which drafted tokens stay, and what comes after them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from adaptspec.models.draft import Draft
from adaptspec.models.sampling import SamplingBatch
from adaptspec.types import FloatArray, IntArray


@dataclass(frozen=True)
class Verdict:
    """Per row: how many drafted tokens stay, and the token after them (correction or bonus).

    `temperature_scores` [B, D, candidates] are for the round's record (see `RoundRecord`).
    """

    accepted: IntArray  # [B]
    following: IntArray  # [B]
    temperature_scores: FloatArray | None = None


class Method(Protocol):
    """Decides, for a batch, which drafted tokens are kept. Lossless unless `lossy` says otherwise.

    Methods are values: two of one kind with the same parameters are equal, and can stand in for each other.
    """

    @property
    def name(self) -> str:
        """As written in policies."""

    @property
    def lossy(self) -> bool:
        """Whether the output may differ from what the target alone would give."""

    @property
    def shares_noise(self) -> bool:
        """Whether the draft must guess with the target's noise (coupled) or with its own (rejection)."""

    @property
    def needs_distribution(self) -> bool:
        """Whether it weighs a drafted token by what that was drawn from.

        Then `Draft.distribution` must be kept for sampled drafts, and drafters be non-anticipating (`Drafter.propose`).
        """

    def verify(self, logits: torch.Tensor, draft: Draft, sampling: SamplingBatch) -> Verdict:
        """Judge the draft. `logits` [sum(counts + 1), V], float32: row i brings counts[i] + 1 of them,
        for the positions of its drafted tokens and the one after.
        """

"""Drawing tokens: processors, the position-keyed noise, and the choice itself.

(to be implemented: see the protocol sketched below)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from adaptspec.types import IntArray, SamplingParams


@dataclass(frozen=True)
class SamplingRow:
    """One row's way of drawing tokens. `tokens` is the engine's live list (prompt + output so far)."""

    params: SamplingParams
    seed: int
    tokens: list[int]
    prompt_length: int
    eos_token_ids: tuple[int, ...]


class SamplingBatch:
    """How a batch draws its tokens: built when the batch's members change, used every round.

    Flattened arguments: N positions, each belongs to batch row index[n]; offsets[n] is how many
    drafted tokens of this round come before it (position = len(row.tokens) + offsets[n]).
    """

    def __init__(self, rows: Sequence[SamplingRow], vocab_size: int, device: torch.device) -> None: ...

    @property
    def plain_greedy(self) -> bool: ...

    def process(
        self, logits: torch.Tensor, index: IntArray, offsets: IntArray, drafted: IntArray
    ) -> torch.Tensor:
        """Scores [N, V] after penalties, bias, min_tokens mask, temperature, top-k, top-p, min-p. drafted [B, >= max offset]."""
        ...

    def choose(self, scores: torch.Tensor, index: IntArray, offsets: IntArray) -> torch.Tensor:
        """[N] token ids: argmax(score + Gumbel(seed, position)); greedy rows without noise."""
        ...

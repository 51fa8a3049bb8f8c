"""The protocol of a drafter: whatever proposes tokens for the target to verify.

A drafter knows token lists and rows; it does not know requests, policies or the target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from adaptspec.models.draft import Draft
from adaptspec.models.sampling import SamplingBatch
from adaptspec.types import BoolArray, FloatArray, IntArray


class Stop(Protocol):
    """After each drafted token, says which rows draft on (see `control.policy.RoundStop`)."""

    def __call__(self, step: int, index: IntArray, confidence: FloatArray, entropy: FloatArray) -> BoolArray:
        """Which of the rows at `index` go on after token `step` (1-based)."""


@dataclass(frozen=True)
class DraftJob:
    """What to draft: the B rows of a round, each with its live token list (prompt + output) and its depth.

    Depth 0 leaves a row out. `shares_noise`: guess with the target's noise (coupled) or with noise
    of one's own. `keep_distribution`: return what sampled tokens were drawn from.
    """

    rows: IntArray  # [B]
    tokens: Sequence[list[int]]  # [B]
    depths: IntArray  # [B]
    sampling: SamplingBatch
    shares_noise: bool = True
    keep_distribution: bool = False
    stop: Stop | None = None


class Drafter(Protocol):
    """Proposes tokens. One call per round for all rows that use it; all calls come from one thread."""

    @property
    def name(self) -> str:
        """As written in policies."""

    def lag(self, row: int, length: int) -> int:
        """Tokens this drafter must still read before it can draft for a row of `length` tokens,

        beyond the one or two that every round brings.
        """

    def propose(self, job: DraftJob) -> Draft:
        """Draft at most `depths` tokens per row. Fewer is always allowed."""

    def commit(self, row: int, valid: int) -> None:
        """The first `valid` tokens the drafter has seen of `row` were kept; forget the rest."""

    def free(self, row: int) -> None:
        """The row's request has ended."""

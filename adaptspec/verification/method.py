"""What a verification method is, and what all of them need: the layout of a verify pass and runs of agreement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from adaptspec.models.draft import Draft
from adaptspec.models.sampling import SamplingBatch
from adaptspec.types import BoolArray, FloatArray, IntArray


@dataclass(frozen=True)
class VerifyResult:
    """Per row: how many drafted tokens stay, and the token after them (correction or bonus).

    `temperature_scores` [B, D, candidates] are for the round's record (see `RoundRecord`).
    """

    accepted: IntArray  # [B]
    following: IntArray  # [B]
    temperature_scores: FloatArray | None = None


class Method(Protocol):
    """Decides, for a batch, which drafted tokens are kept. One that says nothing else is like `coupled`.

    Methods are values: two of one kind with the same parameters are equal, and can stand in for each other.
    A method that needs the distribution weighs a drafted token by what that was drawn from: `Draft.distribution` must
    be kept for sampled drafts, and drafters be non-anticipating (`Drafter.propose`).
    """

    name: str  # as written in policies
    lossy: bool = False  # the output may differ from what the target alone would give
    shares_noise: bool = True  # the draft must guess with the target's noise (coupled), else with its own (rejection)
    needs_distribution: bool = False

    def verify(self, logits: torch.Tensor, draft: Draft, sampling: SamplingBatch) -> VerifyResult:
        """Judge the draft. `logits` [sum(counts + 1), V], float32: row i brings counts[i] + 1 of them,
        for the positions of its drafted tokens and the one after.
        """


@dataclass(frozen=True)
class Windows:
    """The layout of a verify pass: N = sum(counts + 1) packed positions of B rows, row after row."""

    counts: IntArray  # [B]
    starts: IntArray  # [B] first packed position of each row
    index: IntArray  # [N] row of each position
    offsets: IntArray  # [N] place within the row's window, 0 to counts

    @classmethod
    def of(cls, counts: IntArray) -> Windows:
        starts = window_starts(counts)
        index = np.repeat(np.arange(len(counts)), counts + 1)
        return cls(counts, starts, index, np.arange(len(index)) - starts[index])

    @property
    def drafted(self) -> IntArray:
        """The packed positions [M] that hold a drafted token, ascending."""
        return np.flatnonzero(self.offsets < self.counts[self.index])


def window_starts(counts: IntArray) -> IntArray:
    """The first packed position of each row, [B]."""
    starts: IntArray = np.cumsum(counts + 1) - counts - 1
    return starts


def accepted_run(good: BoolArray) -> IntArray:
    """Number of leading True in each row of [B, D]: what follows the first rejection is lost."""
    run: IntArray = np.logical_and.accumulate(good, axis=1).sum(axis=1)
    return run


def agreement(draft: Draft, target: torch.Tensor) -> VerifyResult:
    """Keep drafted tokens up to the first that differs from the target's own, given for all N packed positions.

    Whatever the target has at the next position follows: its correction, or the bonus.
    """
    own, start = target.tolist(), 0
    accepted: list[int] = []
    following: list[int] = []
    for tokens, count in zip(draft.tokens.tolist(), draft.counts.tolist(), strict=True):
        run = 0
        while run < count and tokens[run] == own[start + run]:
            run += 1
        accepted.append(run)
        following.append(own[start + run])
        start += count + 1
    return VerifyResult(np.array(accepted, dtype=np.int64), np.array(following, dtype=np.int64))


def on_device(tensor: torch.Tensor, numbers: IntArray) -> torch.Tensor:
    """The numbers where `tensor` is: to index it with."""
    return torch.from_numpy(numbers).to(tensor.device)

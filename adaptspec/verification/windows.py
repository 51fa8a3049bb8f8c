"""Where a packed verify pass has which position, and how many drafted tokens in a row agree.

Row i of a round brings counts[i] + 1 positions: one for each of its drafted tokens and one for the token
after them. Knows counts and tokens only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from adaptspec.models.draft import Draft
from adaptspec.types import BoolArray, IntArray
from adaptspec.verification.method import Verdict


@dataclass(frozen=True)
class Windows:
    """The packed layout: N = sum(counts + 1) positions of B rows, row after row."""

    counts: IntArray  # [B]
    starts: IntArray  # [B] first packed position of each row
    index: IntArray  # [N] row of each position
    offsets: IntArray  # [N] place within the row's window, 0 to counts

    @classmethod
    def of(cls, counts: IntArray) -> Windows:
        """The layout for rows with so many drafted tokens."""
        starts, widths = window_starts(counts), counts + 1
        index = np.repeat(np.arange(len(counts)), widths)
        return cls(counts, starts, index, np.arange(len(index)) - starts[index])


def window_starts(counts: IntArray) -> IntArray:
    """The first packed position of each row, [B]."""
    starts: IntArray = np.cumsum(counts + 1) - counts - 1
    return starts


def accepted_run(good: BoolArray) -> IntArray:
    """Number of leading True in each row of [B, D]: what follows the first rejection is lost."""
    run: IntArray = np.logical_and.accumulate(good, axis=1).sum(axis=1)
    return run


def agreement(draft: Draft, target: torch.Tensor) -> Verdict:
    """Keep drafted tokens up to the first that differs from the target's own, given for all N packed positions.

    Whatever the target has at the next position follows: its correction, or the bonus.
    """
    own = target.cpu().numpy()
    return agreement_of_one(draft, own) if len(draft.counts) == 1 else agreement_of_many(draft, own)


def agreement_of_one(draft: Draft, target: IntArray) -> Verdict:
    """`agreement` for one row, in a fifth of the time: at batch 1 a round is short."""
    accepted, own = 0, target.tolist()
    for token, wanted in zip(draft.tokens[0, : draft.counts[0]].tolist(), own, strict=False):
        if token != wanted:
            break
        accepted += 1
    return Verdict(np.array([accepted]), np.array([own[accepted]]))


def agreement_of_many(draft: Draft, target: IntArray) -> Verdict:
    """`agreement` for any number of rows."""
    starts = window_starts(draft.counts)
    column = np.arange(draft.tokens.shape[1])
    drafted = column < draft.counts[:, None]
    # Columns beyond a row's window are read somewhere harmless and masked.
    own = target[np.minimum(starts[:, None] + column, len(target) - 1)]
    accepted = accepted_run((own == draft.tokens) & drafted)
    return Verdict(accepted, target[starts + accepted])


def on_device(tensor: torch.Tensor, numbers: IntArray) -> torch.Tensor:
    """The numbers where `tensor` is: to index it with."""
    return torch.from_numpy(numbers).to(tensor.device)

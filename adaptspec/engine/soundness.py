"""Finds rows whose scores are no numbers: of such a row nothing can be drawn, and the others must not suffer.

Knows logits and who owns them; it does not know where a NaN comes from.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from adaptspec.types import IntArray
from adaptspec.verification.method import VerifyResult

_NOBODY: IntArray = np.zeros(0, dtype=np.int64)


class Sound(NamedTuple):
    """Logits that can be judged, and the rows (positions in the round) whose own could not: theirs are zeros now."""

    logits: torch.Tensor  # [N, V]
    broken: IntArray

    def verdict(self, verdict: VerifyResult) -> VerifyResult:
        """The verdict, but that nothing of the broken rows was accepted."""
        if not len(self.broken):
            return verdict
        accepted = verdict.accepted.copy()
        accepted[self.broken] = 0
        return replace(verdict, accepted=accepted)


def sound(logits: torch.Tensor, counts: IntArray) -> Sound:
    """Row i of the round owns counts[i] + 1 of the logits [sum(counts + 1), V].

    One product tells that all is well: the sum of their squares is a number only if all of them are. A sum that
    overflows, or tokens that a model rules out with -inf, cost a closer look and nothing else.
    """
    flat = logits.numpy().reshape(-1) if logits.is_cpu else logits.reshape(-1)
    if math.isfinite(flat @ flat):
        return Sound(logits, _NOBODY)
    best = logits.amax(1)  # NaN if one of them is, -inf if none is left, inf if one cannot be compared
    bad = ~torch.isfinite(best).cpu().numpy()
    if not bad.any():
        return Sound(logits, _NOBODY)
    owners = np.repeat(np.arange(len(counts)), counts + 1)
    broken = np.unique(owners[bad])
    mended = logits.clone()
    mended[torch.from_numpy(np.isin(owners, broken)).to(logits.device)] = 0.0
    return Sound(mended, broken)

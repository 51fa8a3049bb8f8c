"""What the lossy methods share: keep drafted tokens that are good enough, and go on with the target's own choice.

Knows positions and choices; what is good enough is a method's own affair.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from adaptspec.models.draft import Draft
from adaptspec.models.sampling import SamplingBatch
from adaptspec.types import IntArray
from adaptspec.verification.method import Verdict
from adaptspec.verification.windows import Windows, accepted_run, on_device

Judge = Callable[[torch.Tensor, torch.Tensor, IntArray], torch.Tensor]
"""Scores [M, V] of the positions with a drafted token, those tokens [M], their rows [M] -> good enough [M], bool."""


def relaxed(logits: torch.Tensor, draft: Draft, sampling: SamplingBatch, good_enough: Judge) -> Verdict:
    """Keep the drafted tokens up to the first that is not good enough; the target's own token follows.

    The token that the target itself draws at a position is good enough by definition: the text is the same
    whether it is kept or put in. One that processors rule out (a score of -inf) never is.
    """
    windows = Windows.of(draft.counts)
    scores = sampling.process(logits, windows.index, windows.offsets, draft.tokens)
    own = sampling.choose(scores, windows.index, windows.offsets)
    passed = np.zeros(draft.tokens.shape, dtype=np.bool_)
    drafted = np.flatnonzero(windows.offsets < windows.counts[windows.index])
    if len(drafted):
        index, offsets = windows.index[drafted], windows.offsets[drafted]
        tokens = on_device(scores, draft.tokens[index, offsets])
        at = on_device(scores, drafted)
        where = scores.index_select(0, at)
        allowed = where.gather(1, tokens.unsqueeze(1)).squeeze(1) > -torch.inf
        good = (good_enough(where, tokens, index) & allowed) | (own.index_select(0, at) == tokens)
        passed[index, offsets] = good.cpu().numpy()
    accepted = accepted_run(passed)
    following = own.cpu().numpy()[windows.starts + accepted]
    return Verdict(accepted, following)

"""The acceptance that drafted tokens would have had at other draft temperatures, by the target's scores."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from adaptspec.models.draft import Draft
from adaptspec.models.processors import Paths
from adaptspec.models.sampling import SamplingBatch
from adaptspec.types import BoolArray, FloatArray, IntArray
from adaptspec.verification.method import VerifyResult, on_device, window_starts

_MOST = 8  # tokens scored in a round: what is learned is slow to change, and a vocabulary is wide


def score_temperatures(
    logits: torch.Tensor,
    draft: Draft,
    result: VerifyResult,
    sampling: SamplingBatch,
    *,
    shares_noise: BoolArray,
    temperatures: Sequence[float],
) -> FloatArray | None:
    """Acceptance [B, D, T] of drafted tokens of rows that draw, at each temperature; None if there are no such tokens.

    NaN stands for tokens that were not scored. `logits` are those of the verify pass.

    Rows whose draft meets the target's noise (`shares_noise` [B]): 1 where the draft would have chosen what the target
    chose. Others: sum(min(p, q)), the probability to be accepted. Only tokens that verification
    reached are scored: behind a rejected one the target answers a question nobody will ask.
    """
    if draft.scores is None:
        return None
    index, offsets = _reached(draft, result, sampling)
    if not len(index):
        return None
    packed = window_starts(draft.counts)[index] + offsets
    p = sampling.process(logits.index_select(0, on_device(logits, packed)), index, offsets, Paths(draft.tokens))
    q = draft.scores[on_device(p, index), on_device(p, offsets)]
    shared = shares_noise[index]
    scores: FloatArray = np.zeros((len(index), len(temperatures)))
    if shared.any():
        chosen = torch.stack([sampling.choose(q / at, index, offsets) for at in temperatures], dim=1)
        agreed = chosen == sampling.choose(p, index, offsets).unsqueeze(1)
        scores = agreed.double().cpu().numpy()
    if not shared.all():
        scores = np.where(shared[:, None], scores, _overlap(p, q, temperatures))
    whole: FloatArray = np.full((*draft.tokens.shape, len(temperatures)), np.nan)
    whole[index, offsets] = scores
    return whole


def _reached(draft: Draft, result: VerifyResult, sampling: SamplingBatch) -> tuple[IntArray, IntArray]:
    """Rows and offsets of the tokens to score: spread over the batch if there are too many."""
    column = np.arange(draft.tokens.shape[1])
    reached = column < np.minimum(draft.counts, result.accepted + 1)[:, None]
    index, offsets = np.nonzero(reached & ~np.isnan(draft.entropy))
    drawn = sampling.sampled[index]
    index, offsets = index[drawn], offsets[drawn]
    if len(index) > _MOST:
        some = np.linspace(0, len(index) - 1, _MOST).astype(np.int64)
        index, offsets = index[some], offsets[some]
    return index, offsets


def _overlap(p: torch.Tensor, q: torch.Tensor, temperatures: Sequence[float]) -> FloatArray:
    """sum(min(p, q)) with q at each temperature, [M, T], from scores [M, V]."""
    target = p.softmax(1)
    overlaps = [torch.minimum(target, (q / temperature).softmax(1)).sum(1) for temperature in temperatures]
    return np.asarray(torch.stack(overlaps, dim=1).double().cpu().numpy())

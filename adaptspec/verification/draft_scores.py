"""The acceptance that drafted tokens would have had at other draft temperatures, by the target's scores."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adaptspec.models.draft import Draft
from adaptspec.models.noise import Floats
from adaptspec.models.sampling import Logits, SamplingBatch, softmax
from adaptspec.types import BoolArray, FloatArray, IntArray
from adaptspec.verification.method import VerifyResult, window_starts

_MOST = 8  # tokens scored in a round: what is learned is slow to change, and a vocabulary is wide


def score_temperatures(
    logits: Logits,
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
    paths = [draft.tokens[row, :offset].tolist() for row, offset in zip(index, offsets, strict=True)]
    p, q = sampling.process(logits[packed.tolist()], index, paths), draft.scores[index, offsets]
    shared = shares_noise[index]
    scores: FloatArray = np.zeros((len(index), len(temperatures)))
    if shared.any():
        chosen = np.stack([sampling.choose(q / at, index, offsets) for at in temperatures], axis=1)
        scores = (chosen == sampling.choose(p, index, offsets)[:, None]).astype(np.float64)
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


def _overlap(p: Floats, q: Floats, temperatures: Sequence[float]) -> FloatArray:
    """sum(min(p, q)) with q at each temperature, [M, T], from scores [M, V]."""
    overlaps: FloatArray = np.zeros((len(p), len(temperatures)))
    for n, (target_scores, draft_scores) in enumerate(zip(p, q, strict=True)):
        target = softmax(target_scores)
        overlaps[n] = [np.minimum(target, softmax(draft_scores / at)).sum() for at in temperatures]
    return overlaps

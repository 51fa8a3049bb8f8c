"""What all lossy methods share: the target's own choice always stays, and follows the first token that does not."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.models.draft import Draft
from adaptspec.models.sampling import SamplingBatch
from adaptspec.types import IntArray, SamplingParams
from adaptspec.verification.lossy import relaxed
from adaptspec.verification.windows import Windows

from .tables import CPU, VOCAB, make_rows


def _nobody(scores: torch.Tensor, tokens: torch.Tensor, index: IntArray) -> torch.Tensor:
    return torch.zeros(len(tokens), dtype=torch.bool)


def _everybody(scores: torch.Tensor, tokens: torch.Tensor, index: IntArray) -> torch.Tensor:
    return torch.ones(len(tokens), dtype=torch.bool)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), counts=st.lists(st.integers(0, 3), min_size=1, max_size=4))
def test_the_targets_choice_follows(seed: int, counts: list[int]) -> None:
    random = np.random.default_rng(seed)
    rows = make_rows(SamplingParams(temperature=0.0), range(len(counts)))
    sampling = SamplingBatch(rows, VOCAB, CPU)
    logits = torch.from_numpy(random.normal(size=(sum(counts) + len(counts), VOCAB)).astype(np.float32))
    tokens = random.integers(0, VOCAB, (len(counts), max(counts)))
    nothing = np.full(tokens.shape, np.nan)
    draft = Draft(tokens, np.array(counts), nothing, nothing)
    own, starts = logits.argmax(1).numpy(), Windows.of(draft.counts).starts
    for judge, lossy in ((_nobody, False), (_everybody, True)):
        verdict = relaxed(logits, draft, sampling, judge)
        assert (verdict.following == own[starts + verdict.accepted]).all()
        for i, count in enumerate(counts):
            agreed = [bool(own[starts[i] + j] == tokens[i, j]) for j in range(count)]
            assert verdict.accepted[i] == (count if lossy else [*agreed, False].index(False))

"""How much rejection sampling accepts; its corners are in test_speculative, its distribution in test_distribution."""

from __future__ import annotations

import numpy as np
import torch

from adaptspec.models.sampling import SamplingBatch
from adaptspec.types import SamplingParams
from adaptspec.verification.rejection import Rejection

from .tables import CPU, DRAFT, TARGET, VOCAB, Drafter, make_rows


def test_a_draft_from_the_targets_own_distribution_is_always_accepted() -> None:
    rows = make_rows(SamplingParams(temperature=0.7, top_k=3), range(300))
    sampling = SamplingBatch(rows, VOCAB, CPU)
    draft = Drafter(TARGET).propose(rows, sampling, np.ones(300, dtype=np.int64), Rejection())
    contexts = [c for row, x in zip(rows, draft.tokens[:, 0], strict=True) for c in (row.tokens, [*row.tokens[1:], x])]
    verdict = Rejection().verify(TARGET.logits(np.array(contexts)), draft, sampling)
    assert (verdict.accepted == 1).all()


def test_acceptance_is_the_overlap_of_target_and_draft() -> None:
    """P(accept) = sum(min(p, q)), within four standard deviations over 4,000 seeds."""
    rows = make_rows(SamplingParams(), range(4000))
    sampling = SamplingBatch(rows, VOCAB, CPU)
    draft = Drafter().propose(rows, sampling, np.ones(4000, dtype=np.int64), Rejection())
    contexts = [c for row, x in zip(rows, draft.tokens[:, 0], strict=True) for c in (row.tokens, [*row.tokens[1:], x])]
    accepted = Rejection().verify(TARGET.logits(np.array(contexts)), draft, sampling).accepted
    start = np.array([rows[0].tokens])
    overlap = float(torch.minimum(TARGET.logits(start).softmax(1), DRAFT.logits(start).softmax(1)).sum())
    assert abs(accepted.mean() - overlap) < 4 * np.sqrt(overlap * (1 - overlap) / 4000)

"""Rejection sampling's corners; that its distribution is exact is shown in test_distribution."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.models.draft import Draft
from adaptspec.models.sampling import SamplingBatch
from adaptspec.types import IntArray, SamplingParams
from adaptspec.verification.rejection import Rejection

from .tables import CPU, DRAFT, TARGET, VOCAB, Drafter, decode_plainly, make_rows, speculate

GREEDY = SamplingParams(temperature=0.0)


def _draft(tokens: IntArray, distribution: torch.Tensor | None) -> Draft:
    nothing = np.full(tokens.shape, np.nan)
    return Draft(tokens, np.full(len(tokens), tokens.shape[1]), nothing, nothing, distribution)


@settings(max_examples=30, deadline=None)
@given(schedule=st.integers(0, 2**32), point=st.booleans(), sampled=st.integers(0, 3))
def test_greedy_rows_equal_plain_decoding_even_beside_sampled_rows(schedule: int, point: bool, sampled: int) -> None:
    random = np.random.default_rng(schedule)

    def depths(number: int, accepted: IntArray) -> IntArray:
        return random.integers(0, 4, len(accepted))

    mixed = make_rows(GREEDY, [1, 2]) + make_rows(SamplingParams(), range(sampled))
    tokens = speculate(mixed, Rejection(), Drafter(point=point), depths, 8)
    np.testing.assert_array_equal(tokens[:2], decode_plainly(make_rows(GREEDY, [1, 2]), 8))


def test_without_drafts_it_draws_what_plain_decoding_draws() -> None:
    """Off is off: a request that does not speculate gets the same tokens under every method."""
    params = SamplingParams(temperature=1.2, presence_penalty=0.5)
    tokens = speculate(make_rows(params, range(50)), Rejection(), Drafter(), lambda _, last: np.zeros_like(last), 5)
    np.testing.assert_array_equal(tokens, decode_plainly(make_rows(params, range(50)), 5))


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


def test_a_rejected_point_mass_never_comes_back() -> None:
    rows = make_rows(SamplingParams(), range(2000))
    logits = torch.tensor([[0.0, 0.0, 0.0, -60.0, -60.0]]).repeat(4000, 1)
    verdict = Rejection().verify(logits, _draft(np.zeros((2000, 1), dtype=np.int64), None), SamplingBatch(rows, 5, CPU))
    rejected = verdict.accepted == 0
    assert 0.6 < rejected.mean() < 0.73
    assert set(verdict.following[rejected].tolist()) == {1, 2}


def test_a_token_the_target_rules_out_is_never_kept() -> None:
    rows = make_rows(SamplingParams(top_k=1), range(100))
    logits = torch.tensor([[0.0, 3.0, 0.0, 0.0, 0.0]]).repeat(200, 1)
    certain = torch.zeros(100, 1, VOCAB)
    certain[:, :, 4] = 1.0
    draft = _draft(np.full((100, 1), 4), certain)
    verdict = Rejection().verify(logits, draft, SamplingBatch(rows, VOCAB, CPU))
    assert not verdict.accepted.any()
    assert (verdict.following == 1).all()


def test_rounding_that_leaves_no_residual_falls_back_to_the_target() -> None:
    """A q a little above p everywhere can reject with nothing left; the token then comes from p."""
    rows = make_rows(SamplingParams(), range(4000))
    logits = torch.zeros(8000, VOCAB)
    draft = _draft(np.zeros((4000, 1), dtype=np.int64), torch.full((4000, 1, VOCAB), 0.3))
    verdict = Rejection().verify(logits, draft, SamplingBatch(rows, VOCAB, CPU))
    assert 0 < verdict.accepted.sum() < 4000
    assert set(verdict.following.tolist()) == set(range(VOCAB))

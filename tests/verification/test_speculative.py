"""The corners of speculative sampling, under each method; that it is exact in distribution is in test_distribution."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.models.draft import Draft
from adaptspec.models.sampling import SamplingBatch
from adaptspec.types import IntArray, SamplingParams
from adaptspec.verification.block import Block
from adaptspec.verification.method import Method
from adaptspec.verification.rejection import Rejection

from .tables import CPU, VOCAB, Drafter, decode_plainly, make_rows, speculate

GREEDY = SamplingParams(temperature=0.0)
both = pytest.mark.parametrize("method", [Rejection(), Block()], ids=lambda method: method.name)


def _draft(tokens: IntArray, distribution: torch.Tensor | None) -> Draft:
    nothing = np.full(tokens.shape, np.nan)
    return Draft(tokens, np.full(len(tokens), tokens.shape[1]), nothing, nothing, distribution)


@both
@settings(max_examples=30, deadline=None)
@given(schedule=st.integers(0, 2**32), point=st.booleans(), sampled=st.integers(0, 3))
def test_greedy_rows_equal_plain_decoding_even_beside_sampled_rows(
    method: Method, schedule: int, point: bool, sampled: int
) -> None:
    random = np.random.default_rng(schedule)

    def depths(number: int, accepted: IntArray) -> IntArray:
        return random.integers(0, 4, len(accepted))

    mixed = make_rows(GREEDY, [1, 2]) + make_rows(SamplingParams(), range(sampled))
    tokens = speculate(mixed, method, Drafter(point=point), depths, 8)
    np.testing.assert_array_equal(tokens[:2], decode_plainly(make_rows(GREEDY, [1, 2]), 8))


@both
def test_without_drafts_it_draws_what_plain_decoding_draws(method: Method) -> None:
    """Off is off: a request that does not speculate gets the same tokens under every method."""
    params = SamplingParams(temperature=1.2, presence_penalty=0.5)
    tokens = speculate(make_rows(params, range(50)), method, Drafter(), lambda _, last: np.zeros_like(last), 5)
    np.testing.assert_array_equal(tokens, decode_plainly(make_rows(params, range(50)), 5))


@both
def test_a_rejected_point_mass_never_comes_back(method: Method) -> None:
    rows = make_rows(SamplingParams(), range(2000))
    logits = torch.tensor([[0.0, 0.0, 0.0, -60.0, -60.0]]).repeat(4000, 1)
    verdict = method.verify(logits, _draft(np.zeros((2000, 1), dtype=np.int64), None), SamplingBatch(rows, 5, CPU))
    rejected = verdict.accepted == 0
    assert 0.6 < rejected.mean() < 0.73
    assert set(verdict.following[rejected].tolist()) == {1, 2}


@both
def test_a_token_the_target_rules_out_is_never_kept(method: Method) -> None:
    rows = make_rows(SamplingParams(top_k=1), range(100))
    logits = torch.tensor([[0.0, 3.0, 0.0, 0.0, 0.0]]).repeat(200, 1)
    certain = torch.zeros(100, 1, VOCAB)
    certain[:, :, 4] = 1.0
    verdict = method.verify(logits, _draft(np.full((100, 1), 4), certain), SamplingBatch(rows, VOCAB, CPU))
    assert not verdict.accepted.any()
    assert (verdict.following == 1).all()


@both
def test_rounding_that_leaves_no_residual_falls_back_to_the_target(method: Method) -> None:
    """A q a little above p everywhere can reject with nothing left; the token then comes from p."""
    rows = make_rows(SamplingParams(), range(4000))
    logits = torch.zeros(8000, VOCAB)
    draft = _draft(np.zeros((4000, 1), dtype=np.int64), torch.full((4000, 1, VOCAB), 0.3))
    verdict = method.verify(logits, draft, SamplingBatch(rows, VOCAB, CPU))
    assert 0 < verdict.accepted.sum() < 4000
    assert set(verdict.following.tolist()) == set(range(VOCAB))

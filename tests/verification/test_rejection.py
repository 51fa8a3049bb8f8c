"""Speculative sampling: how much it keeps, and corner cases; test_distribution tests its distribution."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from adaptspec.arrays import IntArray
from adaptspec.models.noise import Stream
from adaptspec.models.sampling import SamplingBatch
from adaptspec.request import SamplingParams
from adaptspec.verification.method import Method
from adaptspec.verification.rejection import Block, Rejection

from .tables import (
    DRAFT,
    PROMPT,
    TARGET,
    VOCAB,
    Drafter,
    chain_draft,
    decode_plainly,
    make_rows,
    speculate,
    target_logits,
)

both = pytest.mark.parametrize("method", [Rejection(), Block()], ids=lambda method: method.name)


def _accepted(method: Method, drafter: Drafter, depth: int, seeds: range, **params: float) -> IntArray:
    """The number of tokens that each row keeps [B] in its first round."""
    rows = make_rows(SamplingParams(**params), seeds)  # type: ignore[arg-type]
    sampling = SamplingBatch(rows, VOCAB)
    draft = drafter.propose(rows, sampling, np.full(len(rows), depth), method)
    return method.verify(target_logits(rows, draft), draft, sampling).accepted


@both
def test_a_draft_from_the_targets_own_distribution_is_always_kept(method: Method) -> None:
    """With p = q the residual is empty, and 0 / 0 must count as kept, up to rounding."""
    assert (_accepted(method, Drafter(TARGET), 1, range(300), temperature=0.7, top_k=3) == 1).all()
    assert (_accepted(method, Drafter(TARGET), 4, range(300)) == 4).mean() > 0.99


def test_acceptance_is_the_overlap_of_target_and_draft() -> None:
    """P(accept) = sum(min(p, q)), within four standard deviations over 4,000 seeds."""
    accepted = _accepted(Rejection(), Drafter(), 1, range(4000))
    start = np.array([PROMPT])
    overlap = float(torch.minimum(TARGET.logits(start).softmax(1), DRAFT.logits(start).softmax(1)).sum())
    assert abs(accepted.mean() - overlap) < 4 * np.sqrt(overlap * (1 - overlap) / 4000)


def test_block_keeps_more_than_rejection() -> None:
    """At depth 4 the mean number of kept tokens is larger, by more than chance."""
    block = _accepted(Block(), Drafter(), 4, range(4000))
    rejection = _accepted(Rejection(), Drafter(), 4, range(4000))
    error = np.sqrt((block.var() + rejection.var()) / 4000)
    assert block.mean() > rejection.mean() + 2 * error


# Distributions over three tokens at two positions, whatever the text: the draft is far too sure of the first token.
P = np.array([[0.5, 0.25, 0.25], [0.5, 0.45, 0.05]])
Q = np.array([[0.9, 0.05, 0.05], [0.05, 0.35, 0.6]])


def test_the_residual_where_a_block_is_cut_has_the_weight_of_the_kept_tokens() -> None:
    """After a token that was kept with weight w comes a draw from w p - q; p - q would bias pairs of tokens."""
    rows = make_rows(SamplingParams(), range(4000))
    sampling, every = SamplingBatch(rows, 3), np.arange(len(rows))
    p, q = P.astype(np.float32), Q.astype(np.float32)
    at = [np.full(len(rows), n) for n in (0, 1)]
    drawn = [sampling.choose(np.log(q[n])[None].repeat(len(rows), 0), every, at[n], Stream.DRAFT) for n in (0, 1)]
    tokens = np.stack(drawn, axis=1)
    draft = chain_draft(tokens, q[None].repeat(len(rows), 0))
    logits = torch.from_numpy(np.log(np.concatenate((p, p[:1]))))  # of the token after both any will do
    result = Block().verify(logits.repeat(len(rows), 1), draft, sampling)
    first = np.where(result.accepted >= 1, tokens[:, 0], result.next_token)
    plain = sampling.choose(np.log(p[1])[None].repeat(len(rows), 0), every, at[1])  # the next round's, without drafts
    second = np.choose(result.accepted, (plain, result.next_token, tokens[:, 1]))
    pairs = np.bincount(3 * first + second, minlength=9)
    assert stats.chisquare(pairs, len(rows) * np.outer(*P).ravel()).pvalue > 1e-3
    assert (np.bincount(result.accepted) > 100).all(), "cut before, between and after the two tokens"


@both
@settings(max_examples=30, deadline=None)
@given(schedule=st.integers(0, 2**32), point=st.booleans(), sampled=st.integers(0, 3))
def test_greedy_rows_equal_plain_decoding_in_a_batch_with_sampled_rows(
    method: Method, schedule: int, point: bool, sampled: int
) -> None:
    random = np.random.default_rng(schedule)

    def depths(number: int, accepted: IntArray) -> IntArray:
        return random.integers(0, 4, len(accepted))

    greedy = SamplingParams(temperature=0.0)
    mixed = make_rows(greedy, [1, 2]) + make_rows(SamplingParams(), range(sampled))
    tokens = speculate(mixed, method, Drafter(point=point), depths, 8)
    np.testing.assert_array_equal(tokens[:2], decode_plainly(make_rows(greedy, [1, 2]), 8))


@both
def test_without_drafts_it_draws_what_plain_decoding_draws(method: Method) -> None:
    """A request that does not speculate gets the same tokens under every method."""
    params = SamplingParams(temperature=1.2, presence_penalty=0.5)
    tokens = speculate(make_rows(params, range(50)), method, Drafter(), lambda _, last: np.zeros_like(last), 5)
    np.testing.assert_array_equal(tokens, decode_plainly(make_rows(params, range(50)), 5))


@both
def test_a_rejected_point_mass_never_comes_back(method: Method) -> None:
    rows = make_rows(SamplingParams(), range(2000))
    logits = torch.tensor([[0.0, 0.0, 0.0, -60.0, -60.0]]).repeat(4000, 1)
    result = method.verify(logits, chain_draft(np.zeros((2000, 1), dtype=np.int64)), SamplingBatch(rows, 5))
    rejected = result.accepted == 0
    assert 0.6 < rejected.mean() < 0.73
    assert set(result.next_token[rejected].tolist()) == {1, 2}


@both
def test_a_token_that_the_rules_remove_is_never_kept(method: Method) -> None:
    rows = make_rows(SamplingParams(top_k=1), range(100))
    logits = torch.tensor([[0.0, 3.0, 0.0, 0.0, 0.0]]).repeat(200, 1)
    certain = np.zeros((100, 1, VOCAB), dtype=np.float32)
    certain[:, :, 4] = 1.0
    result = method.verify(logits, chain_draft(np.full((100, 1), 4), certain), SamplingBatch(rows, VOCAB))
    assert not result.accepted.any()
    assert (result.next_token == 1).all()


@both
def test_rounding_that_leaves_no_residual_falls_back_to_the_target(method: Method) -> None:
    """If q is a little above p everywhere, the residual after a rejection is empty; the token is drawn from p."""
    rows = make_rows(SamplingParams(), range(4000))
    logits = torch.zeros(8000, VOCAB)
    draft = chain_draft(np.zeros((4000, 1), dtype=np.int64), np.full((4000, 1, VOCAB), 0.3, dtype=np.float32))
    result = method.verify(logits, draft, SamplingBatch(rows, VOCAB))
    assert 0 < result.accepted.sum() < 4000
    assert set(result.next_token.tolist()) == set(range(VOCAB))

"""Block verification's corners; that its distribution is exact is shown in test_distribution."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.models.draft import Draft
from adaptspec.models.sampling import SamplingBatch, SamplingRow
from adaptspec.types import IntArray, SamplingParams
from adaptspec.verification.block import Block
from adaptspec.verification.method import Method
from adaptspec.verification.rejection import Rejection

from .tables import CPU, TARGET, VOCAB, Drafter, decode_plainly, make_rows, speculate

GREEDY = SamplingParams(temperature=0.0)


def _windows(rows: list[SamplingRow], draft: Draft) -> torch.Tensor:
    """The target's logits at every position of the drafts."""
    contexts = [
        [*row.tokens, *draft.tokens[i, :n]][-3:] for i, row in enumerate(rows) for n in range(draft.counts[i] + 1)
    ]
    return TARGET.logits(np.array(contexts))


def _accepted(method: Method, drafter: Drafter, depth: int, seeds: range) -> IntArray:
    rows = make_rows(SamplingParams(), seeds)
    sampling = SamplingBatch(rows, VOCAB, CPU)
    draft = drafter.propose(rows, sampling, np.full(len(rows), depth), method)
    return method.verify(_windows(rows, draft), draft, sampling).accepted


@settings(max_examples=30, deadline=None)
@given(schedule=st.integers(0, 2**32), point=st.booleans(), sampled=st.integers(0, 3))
def test_greedy_rows_equal_plain_decoding_even_beside_sampled_rows(schedule: int, point: bool, sampled: int) -> None:
    random = np.random.default_rng(schedule)

    def depths(number: int, accepted: IntArray) -> IntArray:
        return random.integers(0, 4, len(accepted))

    mixed = make_rows(GREEDY, [1, 2]) + make_rows(SamplingParams(), range(sampled))
    tokens = speculate(mixed, Block(), Drafter(point=point), depths, 8)
    np.testing.assert_array_equal(tokens[:2], decode_plainly(make_rows(GREEDY, [1, 2]), 8))


def test_without_drafts_it_draws_what_plain_decoding_draws() -> None:
    params = SamplingParams(temperature=1.2, presence_penalty=0.5)
    tokens = speculate(make_rows(params, range(50)), Block(), Drafter(), lambda _, last: np.zeros_like(last), 5)
    np.testing.assert_array_equal(tokens, decode_plainly(make_rows(params, range(50)), 5))


def test_it_keeps_more_of_a_block_than_token_by_token() -> None:
    """What it is for: at depth 4 the mean number of tokens kept is larger, by more than chance."""
    block = _accepted(Block(), Drafter(), 4, range(4000))
    rejection = _accepted(Rejection(), Drafter(), 4, range(4000))
    error = np.sqrt((block.var() + rejection.var()) / 4000)
    assert block.mean() > rejection.mean() + 2 * error


def test_one_token_is_kept_as_often_as_token_by_token() -> None:
    """A block of one leaves nothing to gain: the test is min(1, p / q) with the same uniform number."""
    block = _accepted(Block(), Drafter(), 1, range(500))
    np.testing.assert_array_equal(block, _accepted(Rejection(), Drafter(), 1, range(500)))


def test_a_draft_from_the_targets_own_distribution_is_always_kept() -> None:
    """With p = q nothing is left to draw anew, and 0 / 0 must count as kept; up to rounding it does."""
    accepted = _accepted(Block(), Drafter(TARGET), 4, range(300))
    assert (accepted == 4).mean() > 0.99


def test_a_token_the_target_rules_out_is_never_kept() -> None:
    rows = make_rows(SamplingParams(top_k=1), range(100))
    logits = torch.tensor([[0.0, 3.0, 0.0, 0.0, 0.0]]).repeat(200, 1)
    certain = torch.zeros(100, 1, VOCAB)
    certain[:, :, 4] = 1.0
    nothing = np.full((100, 1), np.nan)
    draft = Draft(np.full((100, 1), 4), np.ones(100, dtype=np.int64), nothing, nothing, certain)
    verdict = Block().verify(logits, draft, SamplingBatch(rows, VOCAB, CPU))
    assert not verdict.accepted.any()
    assert (verdict.following == 1).all()

"""How much block verification keeps; its corners are in test_speculative, its distribution in test_distribution."""

from __future__ import annotations

import numpy as np
import torch

from adaptspec.models.draft import Draft
from adaptspec.models.sampling import SamplingBatch, SamplingRow
from adaptspec.types import IntArray, SamplingParams
from adaptspec.verification.block import Block
from adaptspec.verification.method import Method
from adaptspec.verification.rejection import Rejection

from .tables import CPU, TARGET, VOCAB, Drafter, make_rows


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

"""How much block verification keeps; its corners are in test_speculative, its distribution in test_distribution."""

from __future__ import annotations

import numpy as np
import torch
from scipy import stats

from adaptspec.models.draft import Draft
from adaptspec.models.sampling import SamplingBatch, SamplingRow, Stream
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


# Of three tokens, at two positions whatever stood before: the draft is far too sure of the first token.
P = np.array([[0.5, 0.25, 0.25], [0.5, 0.45, 0.05]])
Q = np.array([[0.9, 0.05, 0.05], [0.05, 0.35, 0.6]])


def test_what_is_drawn_where_a_block_is_cut_makes_up_for_how_it_was_judged() -> None:
    """Behind a token that was kept with weight w comes a draw from w p - q: from p - q pairs of tokens are biased."""
    rows = make_rows(SamplingParams(), range(4000))
    sampling, every = SamplingBatch(rows, 3, CPU), np.arange(len(rows))
    p, q = torch.from_numpy(P).float(), torch.from_numpy(Q).float()
    at = [np.full(len(rows), n) for n in (0, 1)]
    drawn = [sampling.sample(q[n].log().expand(len(rows), -1), every, at[n], Stream.DRAFT) for n in (0, 1)]
    tokens, unknown = torch.stack(drawn, dim=1).numpy(), np.full((len(rows), 2), np.nan)
    draft = Draft(tokens, np.full(len(rows), 2), unknown, unknown, q.expand(len(rows), -1, -1))
    windows = torch.cat((p, p[:1])).log()  # of the token after both only its place matters
    verdict = Block().verify(windows.repeat(len(rows), 1), draft, sampling)
    first = np.where(verdict.accepted >= 1, tokens[:, 0], verdict.following)
    plain = sampling.choose(p[1].log().expand(len(rows), -1), every, at[1]).numpy()  # the next round's, without drafts
    second = np.choose(verdict.accepted, (plain, verdict.following, tokens[:, 1]))
    pairs = np.bincount(3 * first + second, minlength=9)
    assert stats.chisquare(pairs, len(rows) * np.outer(*P).ravel()).pvalue > 1e-3
    assert (np.bincount(verdict.accepted) > 100).all(), "cut before, between and behind them"

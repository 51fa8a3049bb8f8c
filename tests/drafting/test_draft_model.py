"""The draft model: depths per row, catching up, stopping early, confidence, and rows without memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adaptspec.decision import StopTable
from adaptspec.drafting.draft_model import DraftModelDrafter
from adaptspec.drafting.drafter import DraftJob
from adaptspec.models.sampling import RowSampling, SamplingBatch, certainty
from adaptspec.request import SamplingParams
from tests.fakes import TableRunner, array, plain_greedy


def _job(prompts: list[list[int]], depths: list[int], temperature: float = 0.0, **more: object) -> DraftJob:
    rows = [RowSampling(SamplingParams(temperature=temperature), i, p, len(p), (1,)) for i, p in enumerate(prompts)]
    sampling = SamplingBatch(rows, 24)
    return DraftJob(np.arange(len(prompts)), prompts, array(*depths), sampling, **more)  # type: ignore[arg-type]


def test_each_row_drafts_to_its_own_depth() -> None:
    """Tokens are the model's own; a pass reads only the rows that draft so deep."""
    runner = TableRunner()
    prompts = [[5, 6], [7, 8], [9, 10]]
    draft = DraftModelDrafter(runner).propose(_job(prompts, [3, 0, 1]))
    assert draft.tree.counts.tolist() == draft.tree.chain.tolist() == [3, 0, 1]
    assert draft.tree.token.tolist() == [*plain_greedy(runner, [5, 6], 3), *plain_greedy(runner, [9, 10], 1)]
    assert draft.work[0].passes == (2, 1, 1)
    assert runner.length(1) == 0
    assert not np.isnan(draft.tree.confidence).any()


def test_a_row_that_lags_catches_up_in_the_first_step() -> None:
    """After a pause all missed tokens are read once, and counted."""
    runner = TableRunner()
    drafter = DraftModelDrafter(runner)
    tokens = [5, 6, 7, 8, 9, 10]
    assert drafter.cache_gap(0, len(tokens)) == 4
    draft = drafter.propose(_job([tokens], [2]))
    assert draft.work[0].catch_up_tokens == 4
    assert runner.held(0) == [*tokens, draft.tree.token[0]]
    drafter.commit(0, 6, [])
    assert drafter.cache_gap(0, 7) == 0


def test_a_row_that_lags_takes_no_drafts_from_the_others() -> None:
    """A long catch-up spends the budget of the round; the others read their usual two tokens all the same."""
    drafter, long = DraftModelDrafter(TableRunner(), catch_up_tokens=4), list(range(2, 22))
    drafter.propose(_job([long, [7, 8]], [0, 2]))
    drafter.commit(1, 2, [])
    for read in (4, 8):
        draft = drafter.propose(_job([long, [7, 8, 9, 10]], [2, 2]))
        assert draft.tree.counts.tolist() == [0, 2]
        assert drafter.runner.length(0) == read
        drafter.commit(1, 2, [])


def test_the_stop_rule_ends_rows_one_by_one() -> None:
    """A row that stops drafts no further token, the others go on; the table's rows are those of the batch."""
    stop = StopTable(confidence=2.0 * np.eye(4))  # row i stops after its token i + 1
    job = _job([[5, 6], [7, 8], [9, 10], [5, 7]], [4, 4, 4, 0], stop=stop)
    draft = DraftModelDrafter(TableRunner()).propose(job)
    assert draft.tree.counts.tolist() == [1, 2, 3, 0]
    assert len(draft.work[0].passes) == 3


def test_confidence_and_entropy_of_the_token_just_drawn_decide() -> None:
    """A bound just beyond the values of the first token ends the draft there, one just short of them does not."""
    unbound = DraftModelDrafter(TableRunner()).propose(_job([[5, 6]], [2])).tree
    confidence, entropy = unbound.confidence[0], unbound.entropy[0]
    for bound, goes in ((1e-6, False), (-1e-6, True)):
        for stop in (
            StopTable(confidence=np.array([[confidence + bound]])),
            StopTable(entropy=np.array([[entropy - bound, 9.0]])),
        ):
            draft = DraftModelDrafter(TableRunner()).propose(_job([[5, 6]], [2], stop=stop))
            assert (draft.tree.counts[0] > 1) == goes


def test_the_distribution_is_kept_where_verification_needs_it() -> None:
    """For rejection sampling: q at every drafted token sums to one, and gives that token a chance."""
    job = _job([[5, 6], [7, 8]], [2, 1], 0.8, shares_noise=False, keep_distribution=True)
    tree = DraftModelDrafter(TableRunner()).propose(job).tree
    assert tree.distribution is not None
    assert tree.distribution.shape == (3, 24)
    np.testing.assert_allclose(tree.distribution.sum(axis=1), 1.0, atol=1e-5)
    assert (tree.distribution[np.arange(3), tree.token] > 0.0).all()
    assert DraftModelDrafter(TableRunner()).propose(replace(job, keep_distribution=False)).tree.distribution is None


@pytest.mark.parametrize(("runner", "last"), [(TableRunner(capacity=6), 8), (TableRunner(vocab=20), 22)])
def test_a_row_without_memory_or_with_a_token_of_the_target_alone_drafts_nothing(
    runner: TableRunner, last: int
) -> None:
    """Only that row does not draft in this round."""
    draft = DraftModelDrafter(runner).propose(_job([[5, 6], [7, last]], [3, 3]))
    assert draft.tree.counts.tolist() == [3, 0]


def test_a_draft_model_with_a_shorter_context_stops_at_it() -> None:
    """The draft ends where the context of the draft model does, which may be shorter than the target's."""
    drafter = DraftModelDrafter(TableRunner(context=4))
    assert drafter.propose(_job([[5, 6]], [5])).tree.counts.tolist() == [2]
    assert drafter.propose(_job([[5, 6, 7, 8, 9]], [5])).tree.counts.tolist() == [0]


def test_a_draft_temperature_shapes_what_is_drawn_and_kept_but_not_what_is_reported() -> None:
    """q is what was drawn from; confidence and entropy are those before the draft temperature, as stop rules need."""
    job = _job([[5, 6], [7, 8]], [1, 1], 0.8, shares_noise=False, keep_distribution=True)
    plain = DraftModelDrafter(TableRunner()).propose(job).tree
    ends = np.array([[0.25, 0.25], [0.5, 1.5]])
    tempered = DraftModelDrafter(TableRunner()).propose(replace(job, draft_temperature=ends)).tree
    assert plain.distribution is not None
    assert tempered.distribution is not None
    np.testing.assert_allclose(tempered.entropy, plain.entropy)
    temperature = np.array([0.25, 0.5 + min(plain.entropy[1] / 2.0, 1.0)])[:, None]
    sharpened = plain.distribution ** (1.0 / temperature)
    sharpened /= sharpened.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(tempered.distribution, sharpened, rtol=1e-4, atol=1e-9)


@given(depth=st.integers(1, 6), first=st.integers(2, 20), alone=st.booleans(), ends=st.sets(st.integers(0, 23)))
def test_a_draft_stops_at_the_end_of_the_text(depth: int, first: int, alone: bool, ends: set[int]) -> None:
    """An end token is the last one drafted, in a row alone and in a batch."""
    prompts = [[5, first]] if alone else [[5, first], [7, 8]]
    tree = DraftModelDrafter(TableRunner(), ends).propose(_job(prompts, [depth] * len(prompts))).tree
    for row, prompt in enumerate(prompts):
        goes_on: list[int] = []
        while len(goes_on) < depth:
            goes_on.append(int(TableRunner().logits([*prompt, *goes_on]).argmax()))
        until = next((i + 1 for i, token in enumerate(goes_on) if token in ends), depth)
        assert tree.token[tree.row_nodes(row)].tolist() == goes_on[:until]


def test_the_confidence_of_a_drawn_token_counts_shared_noise() -> None:
    """It is softmax(log q + g) under noise shared with the target, else q(x); the entropy is that of q in both."""
    prompts = [[5, 6], [7, 8]]
    job = _job(prompts, [1, 1], 0.9)
    scores = torch.stack([TableRunner().logits(prompt) for prompt in prompts]).numpy() / 0.9
    for shares in (True, False):
        tree = DraftModelDrafter(TableRunner()).propose(replace(job, shares_noise=shares)).tree
        noisy = job.sampling.perturbed(scores, np.arange(2), array(0, 0)) if shares else scores
        np.testing.assert_allclose(tree.confidence, certainty(noisy, tree.token).confidence, rtol=1e-5)
        np.testing.assert_allclose(tree.entropy, certainty(scores, tree.token).entropy, rtol=1e-5)

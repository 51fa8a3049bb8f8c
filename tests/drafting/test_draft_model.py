"""The draft model: per-row depths, catch-up, stopping early, and rows without memory."""

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
from adaptspec.models.sampling import RowSampling, SamplingBatch
from adaptspec.request import SamplingParams
from tests.fakes import TableRunner, array, plain_greedy

CPU = torch.device("cpu")


def _job(prompts: list[list[int]], depths: list[int], temperature: float = 0.0, **more: object) -> DraftJob:
    rows = [RowSampling(SamplingParams(temperature=temperature), i, p, len(p), (1,)) for i, p in enumerate(prompts)]
    sampling = SamplingBatch(rows, 24)
    return DraftJob(np.arange(len(prompts)), prompts, array(*depths), sampling, **more)  # type: ignore[arg-type]


def test_each_row_drafts_to_its_own_depth() -> None:
    """Depth per request: tokens are the model's own, steps are the deepest row's, shallow rows cost no more."""
    runner = TableRunner()
    prompts = [[5, 6], [7, 8], [9, 10]]
    draft = DraftModelDrafter(runner).propose(_job(prompts, [3, 0, 1]))
    assert draft.counts.tolist() == [3, 0, 1]
    assert draft.tokens[0].tolist() == plain_greedy(runner, [5, 6], 3)
    assert draft.tokens[2, 0] == plain_greedy(runner, [9, 10], 1)[0]
    assert len(draft.work[0].passes) == 3
    assert runner.length(1) == 0
    assert np.isnan(draft.confidence[1]).all()
    assert np.isnan(draft.confidence[2, 1:]).all()


def test_a_row_that_lags_catches_up_in_the_first_step() -> None:
    """Coming back after a pause: everything missed is fed once, and counted."""
    runner = TableRunner()
    drafter = DraftModelDrafter(runner)
    tokens = [5, 6, 7, 8, 9, 10]
    assert drafter.cache_gap(0, len(tokens)) == 4
    draft = drafter.propose(_job([tokens], [2]))
    assert draft.work[0].catch_up_tokens == 4
    assert runner.held(0) == [*tokens, draft.tokens[0, 0]]
    drafter.commit(0, 6, [])
    assert drafter.cache_gap(0, 7) == 0


def test_the_stop_rule_ends_rows_one_by_one() -> None:
    """Stop tables: a row that stops drafts no further token, the others go on; rows are those of the batch."""
    stop = StopTable(confidence=2.0 * np.eye(4))  # row i stops after its token i + 1
    job = _job([[5, 6], [7, 8], [9, 10], [5, 7]], [4, 4, 4, 0], stop=stop)
    draft = DraftModelDrafter(TableRunner()).propose(job)
    assert draft.counts.tolist() == [1, 2, 3, 0]
    assert len(draft.work[0].passes) == 3


def test_confidence_and_entropy_of_the_token_just_drawn_decide() -> None:
    """A bound a hair beyond what the first token turned out to be ends the draft there, one a hair short does not."""
    free = DraftModelDrafter(TableRunner()).propose(_job([[5, 6]], [2]))
    sure, spread = free.confidence[0, 0], free.entropy[0, 0]
    for bound, goes in ((1e-6, False), (-1e-6, True)):
        for stop in (
            StopTable(confidence=np.array([[sure + bound]])),
            StopTable(entropy=np.array([[spread - bound, 9.0]])),
        ):
            draft = DraftModelDrafter(TableRunner()).propose(_job([[5, 6]], [2], stop=stop))
            assert (draft.counts[0] > 1) == goes


def test_the_distribution_is_kept_where_verification_needs_it() -> None:
    """Rejection sampling: q of every drafted token sums to one, and gives the drafted token a chance."""
    job = _job([[5, 6], [7, 8]], [2, 1], 0.8, shares_noise=False, keep_distribution=True)
    draft = DraftModelDrafter(TableRunner()).propose(job)
    assert draft.distribution is not None
    assert draft.distribution.shape == (2, 2, 24)
    for row, count in enumerate(draft.counts):
        for step in range(count):
            assert abs(float(draft.distribution[row, step].sum()) - 1) < 1e-5
            assert float(draft.distribution[row, step, draft.tokens[row, step]]) > 0
    assert float(draft.distribution[1, 1].sum()) == 0


@pytest.mark.parametrize(("runner", "last"), [(TableRunner(capacity=6), 8), (TableRunner(vocab=20), 22)])
def test_a_row_without_memory_or_with_a_token_of_the_target_alone_drafts_nothing(
    runner: TableRunner, last: int
) -> None:
    """Speculation is off for that row and round; the others draft."""
    draft = DraftModelDrafter(runner).propose(_job([[5, 6], [7, last]], [3, 3]))
    assert draft.counts.tolist() == [3, 0]


def test_a_draft_model_with_a_shorter_context_stops_at_it() -> None:
    """The target may hold more tokens than the draft: there the draft ends, and the request goes on."""
    drafter = DraftModelDrafter(TableRunner(context=4))
    assert drafter.propose(_job([[5, 6]], [5])).counts.tolist() == [2]
    assert drafter.propose(_job([[5, 6, 7, 8, 9]], [5])).counts.tolist() == [0]


def test_a_draft_temperature_shapes_what_is_drawn_and_kept_but_not_what_is_reported() -> None:
    """q is what was drawn from; confidence and entropy stay the draft's own, so that stop rules see no tuning."""
    job = _job([[5, 6], [7, 8]], [1, 1], 0.8, shares_noise=False, keep_distribution=True)
    plain = DraftModelDrafter(TableRunner()).propose(job)
    ends = np.array([[0.25, 0.25], [0.5, 1.5]])
    tempered = DraftModelDrafter(TableRunner()).propose(replace(job, draft_temperature=ends))
    assert plain.distribution is not None
    assert tempered.distribution is not None
    np.testing.assert_allclose(tempered.entropy, plain.entropy)
    temperature = np.array([0.25, 0.5 + min(plain.entropy[1, 0] / 2.0, 1.0)])[:, None, None]
    sharpened = plain.distribution ** (1.0 / temperature)
    sharpened /= sharpened.sum(axis=2, keepdims=True)
    np.testing.assert_allclose(tempered.distribution, sharpened, rtol=1e-4, atol=1e-9)


@given(depth=st.integers(1, 6), first=st.integers(2, 20), beside=st.booleans(), ends=st.sets(st.integers(0, 23)))
def test_a_draft_stops_at_the_end_of_the_text(depth: int, first: int, beside: bool, ends: set[int]) -> None:
    """What would follow an end token is never read: it is the last one drafted, alone as in a batch."""
    prompts = [[5, first], [7, 8]] if beside else [[5, first]]
    draft = DraftModelDrafter(TableRunner(), ends).propose(_job(prompts, [depth] * len(prompts)))
    for prompt, tokens, count in zip(prompts, draft.tokens.tolist(), draft.counts.tolist(), strict=True):
        goes_on: list[int] = []
        while len(goes_on) < depth:
            goes_on.append(int(TableRunner().logits([*prompt, *goes_on]).argmax()))
        until = next((i + 1 for i, token in enumerate(goes_on) if token in ends), depth)
        assert tokens[:count] == goes_on[:until]

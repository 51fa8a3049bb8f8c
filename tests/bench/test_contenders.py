"""The hostile drafters: they pay for drafting, are never right, and keep the contract of a drafter."""

from __future__ import annotations

import numpy as np
import torch

from adaptspec.bench.contenders import WrongDrafter
from adaptspec.drafting.draft_model import DraftModelDrafter
from adaptspec.drafting.drafter import DraftJob
from adaptspec.models.processors import SamplingRow
from adaptspec.models.sampling import SamplingBatch
from adaptspec.request import SamplingParams
from tests.fakes import TableRunner, array, plain_greedy


def job(tokens: list[list[int]], *depths: int, temperature: float = 0.0) -> DraftJob:
    draws = [SamplingRow(SamplingParams(temperature=temperature), 0, list(row), len(row), (1,)) for row in tokens]
    sampling = SamplingBatch(draws, 24, torch.device("cpu"))
    return DraftJob(np.arange(len(tokens)), tokens, array(*depths), sampling, keep_distribution=temperature > 0.0)


def test_it_proposes_what_the_target_would_not_say() -> None:
    """Its first guess differs from the model's own, at the cost of as many passes."""
    runner = TableRunner()
    draft = WrongDrafter(DraftModelDrafter(runner), 24).propose(job([[5, 6]], 4))
    assert draft.steps == 4
    assert draft.tokens[0, 0] != plain_greedy(runner, [5, 6], 1)[0]


def test_the_cache_holds_no_token_that_was_not_accepted() -> None:
    """The real drafter fed itself what it drafted; whatever of the wrong draft is kept, that is forgotten."""
    runner = TableRunner()
    drafter = WrongDrafter(DraftModelDrafter(runner), 24)
    first = drafter.propose(job([[5, 6]], 4))
    assert runner.held(0) == [5, 6]
    drafter.commit(0, 3, [])  # by chance its first token was right
    text = [5, 6, int(first.tokens[0, 0]), 9]
    drafter.propose(job([text], 2))
    assert runner.held(0) == text


def test_its_distribution_is_the_one_its_tokens_come_from() -> None:
    """Shifted like the tokens: rejection sampling stays exact, however wrong the draft."""
    real = DraftModelDrafter(TableRunner()).propose(job([[5, 6]], 3, temperature=1.0))
    wrong = WrongDrafter(DraftModelDrafter(TableRunner()), 24).propose(job([[5, 6]], 3, temperature=1.0))
    assert real.distribution is not None
    assert wrong.distribution is not None
    for position in range(3):
        mine, other = int(wrong.tokens[0, position]), int(real.tokens[0, position])
        assert mine != other
        assert wrong.distribution[0, position, mine] == real.distribution[0, position, other]

"""A drafter whose failures are isolated can do what it could before, and raises nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adaptspec.drafting.draft_model import DraftModelDrafter
from adaptspec.drafting.drafter import DraftJob, RowStart
from adaptspec.drafting.isolated_drafter import SHORTEST_REST, IsolatedModelFreeDrafter, isolated
from adaptspec.drafting.lookup import LookupDrafter
from adaptspec.drafting.prediction import Prediction
from adaptspec.models.draft import Draft
from adaptspec.models.sampling import RowSampling, SamplingBatch
from adaptspec.request import SamplingParams
from tests.fakes import TableRunner

REPEATS = [5, 6, 7, 8, 5, 6]


def _start(prediction: Sequence[int], prompt_length: int) -> RowStart:
    return RowStart(RowSampling(SamplingParams(), 0, [], prompt_length, ()), Prediction(prediction, prompt_length))


class Broken(LookupDrafter):
    def offer(self, row: int, tokens: list[int], most: int) -> list[float]:
        raise MemoryError("no room")

    def begin(self, row: int, start: RowStart) -> None:
        raise ValueError("not now")

    def shadow(self, row: int, tokens: list[int], start: int) -> tuple[int, int]:
        raise RuntimeError("never")


def test_what_is_raised_costs_offers_until_it_has_rested() -> None:
    now = [0.0]
    inner = Broken(24)
    made = IsolatedModelFreeDrafter(inner, lambda: now[0])
    made.begin(0, _start([1], 0))
    now[0] += 2 * SHORTEST_REST
    assert made.offer(0, REPEATS, 2) == []
    now[0] += 8 * SHORTEST_REST
    assert made.shadow(0, REPEATS, 4) == (0, 0)
    assert made.shadow(0, REPEATS, 4) == (0, 0)


class Failing(LookupDrafter):
    """Never answers, and counts how often it was asked."""

    asked = 0

    def offer(self, row: int, tokens: list[int], most: int) -> list[float]:
        self.asked += 1
        raise MemoryError("no room")


def test_a_drafter_that_keeps_failing_rests_longer_up_to_a_minute() -> None:
    """Failing costs rounds their time; one that was well for as long as it had rested begins with a short rest."""
    now = [0.0]
    inner = Failing(24)
    made = IsolatedModelFreeDrafter(inner, lambda: now[0])

    def rests(seconds: float) -> bool:
        """Fails now, is left alone until just before that time, and is asked again at it."""
        made.offer(0, REPEATS, 2)
        asked = inner.asked
        now[0] += seconds * 0.999
        made.offer(0, REPEATS, 2)
        left_alone = inner.asked == asked
        now[0] += seconds * 0.002
        return left_alone

    expected = [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 60.0, 60.0]
    for number, seconds in enumerate(expected, start=1):
        assert rests(seconds), seconds
        assert inner.asked == number
    now[0] += 60.0
    assert rests(0.1)
    assert rests(0.2)
    assert inner.asked == len(expected) + 2


class HalfBroken(DraftModelDrafter):
    """Its scores are no numbers from the second drafted token on, in its first row."""

    non_anticipating = False

    def propose(self, job: DraftJob) -> Draft:
        draft = super().propose(job)
        draft.confidence[0, 1:] = np.nan
        return draft


def test_a_draft_ends_where_its_scores_are_no_numbers() -> None:
    """Which scores break may depend on what was drawn: were that dropped, too, it would come too rarely."""
    runner = TableRunner(seed=1)
    tokens = [[5, 6, 7], [6, 7, 8]]
    rows = [RowSampling(SamplingParams(), seed, text, len(text), (1,)) for seed, text in enumerate(tokens)]
    sampling = SamplingBatch(rows, runner.info.vocab_size)
    job = DraftJob(np.arange(2), tokens, np.array([3, 3]), sampling, shares_noise=False, keep_distribution=True)
    whole = DraftModelDrafter(TableRunner(seed=1)).propose(job)
    made = isolated(HalfBroken(runner))
    draft = made.propose(job)
    assert not made.non_anticipating
    assert draft.counts.tolist() == [1, 3]
    assert draft.tokens.tolist() == [[whole.tokens[0, 0], 0, 0], whole.tokens[1].tolist()]
    assert [runner.length(row) for row in range(2)] == [0, 0]  # what broke it may be in its cache
    assert made.propose(job).counts.tolist() == [0, 0]  # it rests

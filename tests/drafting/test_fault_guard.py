"""A guarded drafter raises nothing: an error costs drafts of some rounds, and broken drafts are cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from adaptspec.drafting.draft_model import DraftModelDrafter
from adaptspec.drafting.drafter import Draft, DraftJob, RowStart
from adaptspec.drafting.fault_guard import MIN_SUSPENSION, GuardedDrafter
from adaptspec.drafting.lookup import LookupDrafter
from adaptspec.drafting.prediction import Prediction
from adaptspec.models.sampling import RowSampling, SamplingBatch
from adaptspec.request import SamplingParams
from tests.engine.branching import Shape
from tests.fakes import TableRunner

REPEATS = [5, 6, 7, 8, 5, 6]


def _start(prediction: Sequence[int], prompt_length: int) -> RowStart:
    return RowStart(RowSampling(SamplingParams(), 0, [], prompt_length, ()), Prediction(prediction, prompt_length))


class Broken(LookupDrafter):
    def look_up(self, row: int, tokens: list[int], max_depth: int) -> list[float]:
        raise MemoryError("no room")

    def start(self, row: int, start: RowStart) -> None:
        raise ValueError("not now")

    def score(self, row: int, tokens: list[int], start: int) -> tuple[int, int]:
        raise RuntimeError("never")


def test_a_failed_drafter_is_suspended() -> None:
    now = [0.0]
    inner = Broken(24)
    made = GuardedDrafter(inner, lambda: now[0])
    made.start(0, _start([1], 0))
    now[0] += 2 * MIN_SUSPENSION
    assert made.look_up(0, REPEATS, 2) == []
    now[0] += 8 * MIN_SUSPENSION
    assert made.score(0, REPEATS, 4) == (0, 0)
    assert made.score(0, REPEATS, 4) == (0, 0)


class Failing(LookupDrafter):
    """Fails at every call, and counts them."""

    asked = 0

    def look_up(self, row: int, tokens: list[int], max_depth: int) -> list[float]:
        self.asked += 1
        raise MemoryError("no room")


def test_suspensions_of_a_failing_drafter_grow_to_a_minute() -> None:
    """After as long without an error as the last suspension, the next one is short again."""
    now = [0.0]
    inner = Failing(24)
    made = GuardedDrafter(inner, lambda: now[0])

    def is_suspended(seconds: float) -> bool:
        """It fails now, is not called until just before that time, and is called again after it."""
        made.look_up(0, REPEATS, 2)
        asked = inner.asked
        now[0] += seconds * 0.999
        made.look_up(0, REPEATS, 2)
        left_alone = inner.asked == asked
        now[0] += seconds * 0.002
        return left_alone

    expected = [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 60.0, 60.0]
    for number, seconds in enumerate(expected, start=1):
        assert is_suspended(seconds), seconds
        assert inner.asked == number
    now[0] += 60.0
    assert is_suspended(0.1)
    assert is_suspended(0.2)
    assert inner.asked == len(expected) + 2


class Stuck(DraftModelDrafter):
    """Fails at every call, and counts those for drafts."""

    asked = 0

    def propose(self, job: DraftJob) -> Draft:
        self.asked += 1
        raise MemoryError("the device is lost")

    def leave(self, row: int) -> None:
        raise MemoryError("the device is lost")

    def free(self, row: int) -> None:
        raise MemoryError("the device is lost")


def test_a_failure_that_also_prevents_freeing_rows_is_one_failure() -> None:
    now, inner = [0.0], Stuck(TableRunner())
    made, job = GuardedDrafter(inner, lambda: now[0]), _job([[5, 6]] * 8, [3] * 8)
    made.propose(job)
    for seconds, calls in ((0.999 * MIN_SUSPENSION, 1), (1.001 * MIN_SUSPENSION, 2)):
        now[0] = seconds
        made.propose(job)
        assert inner.asked == calls


class HalfBroken(DraftModelDrafter):
    """Its confidence is NaN from the second drafted token of its first row on."""

    non_anticipating = False

    def propose(self, job: DraftJob) -> Draft:
        draft = super().propose(job)
        draft.tree.confidence[(draft.tree.row == 0) & (draft.tree.index >= 1)] = np.nan
        return draft


def _job(tokens: list[list[int]], depths: list[int], temperature: float = 1.0) -> DraftJob:
    rows = [
        RowSampling(SamplingParams(temperature=temperature), seed, text, len(text), (1,))
        for seed, text in enumerate(tokens)
    ]
    return DraftJob(np.arange(len(tokens)), tokens, np.array(depths), SamplingBatch(rows, 24))


def test_a_draft_ends_where_its_scores_are_not_numbers() -> None:
    """Earlier tokens stay: the broken scores may depend on them, so dropping them would make them too rare."""
    runner = TableRunner(seed=1)
    job = replace(_job([[5, 6, 7], [6, 7, 8]], [3, 3]), shares_noise=False, keep_distribution=True)
    whole = DraftModelDrafter(TableRunner(seed=1)).propose(job).tree
    made = GuardedDrafter(HalfBroken(runner))
    tree = made.propose(job).tree
    assert not made.non_anticipating
    assert tree.counts.tolist() == tree.chain.tolist() == [1, 3]
    assert tree.token.tolist() == whole.token[[0, 3, 4, 5]].tolist()
    np.testing.assert_array_equal(tree.distribution, whole.distribution[[0, 3, 4, 5]])
    assert [runner.length(row) for row in range(2)] == [0, 0]  # the error may come from its cache
    assert made.propose(job).tree.counts.tolist() == [0, 0]  # it is suspended


class BrokenAfter(TableRunner):
    """Its scores are NaN after some tokens."""

    bad: frozenset[int] = frozenset()

    def logits(self, tokens: list[int]) -> torch.Tensor:
        scores = super().logits(tokens)
        return scores * torch.nan if tokens[-1] in self.bad else scores


def test_a_tree_is_cut_where_its_scores_are_not_numbers() -> None:
    """The descendants of a broken node go with it; its siblings stay."""
    job = replace(_job([[5, 6]], [4], 0.0), tree=Shape(nodes=64).table(1))
    sound = DraftModelDrafter(TableRunner()).propose(job).tree
    runner = BrokenAfter()
    runner.bad = frozenset([int(sound.token[1])])
    tree = GuardedDrafter(DraftModelDrafter(runner)).propose(job).tree
    assert tree.chain.tolist() == [2]
    assert tree.counts[0] > 2
    assert not np.isnan(tree.confidence).any()

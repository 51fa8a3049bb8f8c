"""Choices are reproducible, mixed batches do not leak into each other, and plain greedy costs nothing extra."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from adaptspec.models.processors import Paths
from adaptspec.models.sampling import (
    PART,
    SamplingBatch,
    SamplingRow,
    Stream,
    certainty,
)
from adaptspec.request import SamplingParams
from adaptspec.types import IntArray

CPU = torch.device("cpu")
VOCAB = 16
GREEDY = SamplingParams(temperature=0.0)


def _rows(params: SamplingParams, seeds: range, length: int = 4) -> list[SamplingRow]:
    return [SamplingRow(params, seed, [1] * length, 2, (0,)) for seed in seeds]


def _scores(count: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(0.0, 1.5, (count, VOCAB)).astype(np.float32))


def _zeros(count: int) -> IntArray:
    return np.zeros(count, dtype=np.int64)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.7),
        SamplingParams(top_p=0.8),
        SamplingParams(top_k=7, min_p=0.05),
        SamplingParams(temperature=0.0, repetition_penalty=1.3, frequency_penalty=0.2),
        SamplingParams(logit_bias={3: 2.0}, min_tokens=9),
    ],
    ids=["temperature", "top-p", "top-k", "penalties", "bias"],
)
@pytest.mark.parametrize("branching", [False, True])
def test_positions_in_parts_are_scored_as_each_alone(params: SamplingParams, branching: bool) -> None:
    """More positions than a CPU scores at a time, in rows that draw and rows that do not: the same bits."""
    rows, depth = 6, PART // 2
    batch = SamplingBatch(_rows(GREEDY, range(2)) + _rows(params, range(2, rows)), VOCAB, CPU)
    index, offsets = np.repeat(np.arange(rows), depth), np.tile(np.arange(depth), rows)
    drafted = np.random.default_rng(1).integers(0, VOCAB, (rows, depth))
    paths = Paths(drafted[index], np.arange(len(index))) if branching else Paths(drafted)
    logits = _scores(len(index))
    scores = batch.process(logits, index, offsets, paths)
    noisy = batch.perturbed(scores, index, offsets)
    assert len(index) > 2 * PART
    for n in range(len(index)):
        one = slice(n, n + 1)
        alone = batch.process(logits[one], index[one], offsets[one], paths.take(one))
        assert torch.equal(alone, scores[one])
        assert torch.equal(batch.perturbed(alone, index[one], offsets[one]), noisy[one])


@settings(max_examples=50, deadline=None)
@given(
    seeds=st.lists(st.integers(-(2**63) + 1, 2**63 - 1), min_size=1, max_size=5),
    greedy=st.lists(st.booleans(), min_size=5, max_size=5),
    offsets=st.lists(st.integers(0, 6), min_size=5, max_size=5),
)
def test_a_choice_depends_on_seed_and_position_alone(seeds: list[int], greedy: list[bool], offsets: list[int]) -> None:
    """The same position reached by offset in a mixed batch or by length alone gets the same token."""
    rows = [
        SamplingRow(GREEDY if g else SamplingParams(), s, [1, 2, 3], 3, (0,))
        for s, g in zip(seeds, greedy, strict=False)
    ]
    index, ahead, scores = np.arange(len(rows)), np.array(offsets[: len(rows)]), _scores(len(rows))
    together = SamplingBatch(rows, VOCAB, CPU).choose(scores, index, ahead)
    for i, row in enumerate(rows):
        grown = SamplingRow(row.params, row.seed, [1, 2, 3] + [7] * offsets[i], 3, (0,))
        alone = SamplingBatch([grown], VOCAB, CPU).choose(scores[i : i + 1], _zeros(1), _zeros(1))
        assert int(alone) == int(together[i])


@pytest.mark.parametrize("stream", [None, Stream.DRAFT])
def test_draws_follow_the_probabilities(stream: Stream | None) -> None:
    batch = SamplingBatch(_rows(SamplingParams(), range(8000)), VOCAB, CPU)
    scores, index = _scores(1).repeat(8000, 1), np.arange(8000)
    if stream is None:
        drawn = batch.choose(scores, index, _zeros(8000))
    else:
        drawn = batch.sample(scores, index, _zeros(8000), stream)
    expected = batch.probabilities(scores[:1], _zeros(1))[0].double().numpy()
    assert stats.chisquare(np.bincount(drawn, minlength=VOCAB), expected / expected.sum() * 8000).pvalue > 1e-3


def test_a_guess_is_fresh_each_round_and_unlike_the_choice() -> None:
    """One position, three draws that must be independent: they agree as often as chance has it (1 in 16)."""
    rows, index, flat = _rows(SamplingParams(), range(2000)), np.arange(2000), torch.zeros(2000, VOCAB)
    batch = SamplingBatch(rows, VOCAB, CPU)
    choice = batch.choose(flat, index, np.full(2000, 3))
    first, uniform = (
        batch.sample(flat, index, np.full(2000, 3), Stream.DRAFT),
        batch.uniform(index, np.full(2000, 3), Stream.ACCEPT),
    )
    for row in rows:
        row.tokens.append(5)
    again = batch.sample(flat, index, np.full(2000, 2), Stream.DRAFT)
    assert torch.equal(batch.choose(flat, index, np.full(2000, 2)), choice)
    for one, other in ((choice, first), (first, again), (choice, again)):
        assert 0.03 < float((one == other).double().mean()) < 0.1
    assert not np.isclose(uniform, batch.uniform(index, np.full(2000, 2), Stream.ACCEPT)).any()


def test_logits_of_another_width_are_cut_or_filled() -> None:
    """A padded target head never yields a padding token; a smaller draft never one it does not have."""
    batch = SamplingBatch(_rows(GREEDY, range(2)), VOCAB, CPU)
    where = (np.arange(2), _zeros(2), Paths(np.zeros((2, 0), dtype=np.int64)))
    wide = torch.cat((_scores(2), torch.full((2, 3), 99.0)), dim=1)
    assert torch.equal(batch.process(wide, *where), _scores(2))
    narrow = batch.process(_scores(2)[:, :10], *where)
    assert torch.equal(narrow[:, :10], _scores(2)[:, :10])
    assert (narrow[:, 10:] == -math.inf).all()


def test_certainty_is_probability_and_entropy_and_copes_with_removed_tokens() -> None:
    scores, chosen = _scores(4), torch.tensor([0, 3, 2, 5])
    scores[1, 4:] = -math.inf
    scores[2] = -math.inf
    scores[2, 2] = 1.0
    sure = certainty(scores, chosen)
    probabilities = scores.double().softmax(1).numpy()
    np.testing.assert_allclose(sure.confidence, probabilities[np.arange(4), chosen], rtol=1e-5)
    np.testing.assert_allclose(sure.entropy, stats.entropy(probabilities, axis=1), rtol=1e-5, atol=1e-6)
    assert sure.confidence.dtype == sure.entropy.dtype == np.float64

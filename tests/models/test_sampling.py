"""Choices are reproducible, mixed batches do not leak into each other, and plain greedy costs nothing extra."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from adaptspec.arrays import IntArray
from adaptspec.models.noise import Floats, Stream
from adaptspec.models.sampling import RowSampling, SamplingBatch, certainty, leading
from adaptspec.request import SamplingParams

VOCAB = 16
GREEDY = SamplingParams(temperature=0.0)


def _rows(params: SamplingParams, seeds: range, length: int = 4) -> list[RowSampling]:
    return [RowSampling(params, seed, [1] * length, 2, (0,)) for seed in seeds]


def _scores(count: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).normal(0.0, 1.5, (count, VOCAB)).astype(np.float32)


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
def test_positions_are_decided_as_each_alone(params: SamplingParams) -> None:
    """In rows that draw and rows that do not; from logits at once, or from scores."""
    rows, depth = 6, 5
    batch = SamplingBatch(_rows(GREEDY, range(2)) + _rows(params, range(2, rows)), VOCAB)
    index, offsets = np.repeat(np.arange(rows), depth), np.tile(np.arange(depth), rows)
    random = np.random.default_rng(1)
    paths = [random.integers(0, VOCAB, offset).tolist() for offset in offsets]
    logits = torch.from_numpy(_scores(len(index)))
    scores = batch.process(logits, index, paths)
    noisy = batch.perturbed(scores, index, offsets)
    np.testing.assert_array_equal(batch.choose(scores, index, offsets), noisy.argmax(1))
    np.testing.assert_array_equal(batch.next_tokens(logits, index, paths), noisy.argmax(1))
    for n in range(len(index)):
        one = slice(n, n + 1)
        alone = batch.process(logits[one], index[one], paths[one])
        np.testing.assert_array_equal(alone, scores[one])
        np.testing.assert_array_equal(batch.perturbed(alone, index[one], offsets[one]), noisy[one])


@settings(max_examples=50, deadline=None)
@given(
    seeds=st.lists(st.integers(-(2**63) + 1, 2**63 - 1), min_size=1, max_size=5),
    greedy=st.lists(st.booleans(), min_size=5, max_size=5),
    offsets=st.lists(st.integers(0, 6), min_size=5, max_size=5),
)
def test_a_choice_depends_on_seed_and_position_alone(seeds: list[int], greedy: list[bool], offsets: list[int]) -> None:
    """The same position reached by offset in a mixed batch or by length alone gets the same token."""
    rows = [
        RowSampling(GREEDY if g else SamplingParams(), s, [1, 2, 3], 3, (0,))
        for s, g in zip(seeds, greedy, strict=False)
    ]
    index, ahead, scores = np.arange(len(rows)), np.array(offsets[: len(rows)]), _scores(len(rows))
    together = SamplingBatch(rows, VOCAB).choose(scores, index, ahead)
    for i, row in enumerate(rows):
        grown = RowSampling(row.params, row.seed, [1, 2, 3] + [7] * offsets[i], 3, (0,))
        alone = SamplingBatch([grown], VOCAB).choose(scores[i : i + 1], _zeros(1), _zeros(1))
        assert alone[0] == together[i]


@pytest.mark.parametrize("stream", [Stream.CHOICE, Stream.DRAFT])
def test_draws_follow_the_probabilities(stream: Stream) -> None:
    batch = SamplingBatch(_rows(SamplingParams(), range(8000)), VOCAB)
    scores, index = _scores(1).repeat(8000, 0), np.arange(8000)
    drawn = batch.choose(scores, index, _zeros(8000), stream)
    expected = batch.probabilities(scores[:1], _zeros(1))[0].astype(np.float64)
    assert stats.chisquare(np.bincount(drawn, minlength=VOCAB), expected / expected.sum() * 8000).pvalue > 1e-3


def test_a_guess_is_fresh_each_round_and_unlike_the_choice() -> None:
    """One position, three draws that must be independent: they agree as often as chance has it (1 in 16)."""
    rows, index, flat = _rows(SamplingParams(), range(2000)), np.arange(2000), np.zeros((2000, VOCAB), dtype=np.float32)
    batch = SamplingBatch(rows, VOCAB)
    choice = batch.choose(flat, index, np.full(2000, 3))
    first, uniform = (
        batch.choose(flat, index, np.full(2000, 3), Stream.DRAFT),
        batch.uniform(index, np.full(2000, 3), Stream.ACCEPT),
    )
    for row in rows:
        row.tokens.append(5)
    again = batch.choose(flat, index, np.full(2000, 2), Stream.DRAFT)
    np.testing.assert_array_equal(batch.choose(flat, index, np.full(2000, 2)), choice)
    for one, other in ((choice, first), (first, again), (choice, again)):
        assert 0.03 < (one == other).mean() < 0.1
    assert not np.isclose(uniform, batch.uniform(index, np.full(2000, 2), Stream.ACCEPT)).any()


def test_logits_of_another_width_are_cut_or_filled() -> None:
    """A padded target head never yields a padding token; a smaller draft never one it does not have."""
    batch = SamplingBatch(_rows(GREEDY, range(2)), VOCAB)
    index, paths, logits = np.arange(2), [[], []], torch.from_numpy(_scores(2))
    wide = torch.cat((logits, torch.full((2, 3), 99.0)), dim=1)
    np.testing.assert_array_equal(batch.process(wide, index, paths), _scores(2))
    np.testing.assert_array_equal(batch.next_tokens(wide, index, paths), _scores(2).argmax(1))
    narrow = batch.process(logits[:, :10], index, paths)
    np.testing.assert_array_equal(narrow[:, :10], _scores(2)[:, :10])
    assert (narrow[:, 10:] == -math.inf).all()


def test_certainty_is_probability_and_entropy_and_copes_with_removed_tokens() -> None:
    scores, chosen = _scores(4), np.array([0, 3, 2, 5])
    scores[1, 4:] = -math.inf
    scores[2] = -math.inf
    scores[2, 2] = 1.0
    sure = certainty(scores, chosen)
    probabilities = special.softmax(scores.astype(np.float64), axis=1)
    np.testing.assert_allclose(sure.confidence, probabilities[np.arange(4), chosen], rtol=1e-5)
    np.testing.assert_allclose(sure.entropy, stats.entropy(probabilities, axis=1), rtol=1e-5, atol=1e-6)
    assert sure.confidence.dtype == sure.entropy.dtype == np.float64


def test_leading_tokens_are_the_likeliest_in_order() -> None:
    scores = _scores(3)
    scores[1, 5] = scores[1].max()
    tokens, shares = leading(scores, 4)
    np.testing.assert_array_equal(tokens, np.argsort(-scores, axis=1, kind="stable")[:, :4])
    expected = special.softmax(scores.astype(np.float64), axis=1)
    np.testing.assert_allclose(shares, np.take_along_axis(expected, tokens, axis=1), rtol=1e-5)
    assert leading(scores, 99)[0].shape == (3, VOCAB)

"""Scores by a request's rules are those of `transformers`' processors in the same order, position by position."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from adaptspec.models.noise import Floats
from adaptspec.models.sampling import RowSampling, SamplingBatch
from adaptspec.request import SamplingParams


def _row(params: SamplingParams, prompt: list[int], output: list[int], eos: tuple[int, ...] = (0,)) -> RowSampling:
    return RowSampling(params, 1, [*prompt, *output], len(prompt), eos)


def _logits(seed: int, vocab: int, spread: float = 3.0) -> Floats:
    return np.random.default_rng(seed).normal(0.0, spread, vocab).astype(np.float32)


def _theirs(row: RowSampling, logits: Floats) -> Floats:
    params = row.params
    steps = LogitsProcessorList()
    if params.repetition_penalty != 1.0:
        steps.append(RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    if params.logit_bias:
        steps.append(SequenceBiasLogitsProcessor([[[token], bias] for token, bias in params.logit_bias.items()]))
    if params.min_tokens:
        ending = [*row.eos_token_ids, *params.stop_token_ids]
        steps.append(MinNewTokensLengthLogitsProcessor(row.prompt_length, params.min_tokens, ending))
    if params.temperature != 1.0:
        steps.append(TemperatureLogitsWarper(params.temperature))
    if params.top_k:
        steps.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1.0:
        steps.append(TopPLogitsWarper(params.top_p))
    if params.min_p:
        steps.append(MinPLogitsWarper(params.min_p))
    scores: Floats = steps(torch.LongTensor([row.tokens]), torch.from_numpy(logits[None].copy()))[0].numpy()
    return scores


def _near_an_edge(scores: Floats, params: SamplingParams) -> bool:
    """Whether rounding alone may decide if a token is kept by top-p or min-p."""
    mass = np.sort(np.exp(scores.astype(np.float64)))[::-1]
    reached, ratio = mass.cumsum() / mass.sum(), mass / mass[0]
    cuts = [(reached, params.top_p, params.top_p < 1.0), (ratio, params.min_p, params.min_p > 0.0)]
    return any(used and bool((np.abs(values - edge) < 1e-5).any()) for values, edge, used in cuts)


PARAMS = st.builds(
    SamplingParams,
    temperature=st.floats(0.2, 3.0),
    top_k=st.integers(0, 40),
    top_p=st.floats(0.05, 1.0),
    min_p=st.floats(0.0, 0.9),
    repetition_penalty=st.floats(0.5, 2.0),
    logit_bias=st.dictionaries(st.integers(0, 23), st.floats(-20.0, 20.0).filter(bool), max_size=4),
    min_tokens=st.integers(0, 4),
    stop_token_ids=st.sampled_from([(), (3,), (5, 23)]),
)


@settings(max_examples=150, deadline=None)
@given(params=PARAMS, seed=st.integers(0, 2**32), output=st.lists(st.integers(0, 23), max_size=6))
def test_scores_and_kept_tokens_equal_those_of_transformers(
    params: SamplingParams, seed: int, output: list[int]
) -> None:
    row, logits = _row(params, [1, 2, 2, 9], output), _logits(seed, 24)
    before_cuts = SamplingParams(
        temperature=params.temperature,
        top_k=params.top_k,
        repetition_penalty=params.repetition_penalty,
        logit_bias=params.logit_bias,
        min_tokens=params.min_tokens,
        stop_token_ids=params.stop_token_ids,
    )
    assume(not _near_an_edge(_theirs(_row(before_cuts, [1, 2, 2, 9], output), logits), params))
    mine, theirs = row.scores(logits, []), _theirs(row, logits)
    np.testing.assert_array_equal(mine == -math.inf, theirs == -math.inf)
    np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-6)


def test_top_p_is_a_share_of_what_top_k_keeps() -> None:
    """The likeliest token has two thirds of the three that are kept, and a fifth of all."""
    row = _row(SamplingParams(top_k=3, top_p=0.6), [1], [])
    logits = np.array([2.0, 1.0, 0.0, *[-0.5] * 21], dtype=np.float32)
    assert np.flatnonzero(row.scores(logits, []) > -math.inf).tolist() == [0]


@pytest.mark.parametrize("spread", [0.01, 1.0, 4.0])
def test_a_nucleus_of_any_size_equals_that_of_transformers(spread: float) -> None:
    """From nearly all tokens to a few."""
    for seed in range(5):
        row, logits = _row(SamplingParams(top_p=0.9), [1], []), _logits(seed, 3000, spread)
        differ = (row.scores(logits, []) == -math.inf) != (_theirs(row, logits) == -math.inf)
        assert int(differ.sum()) <= 1  # float32 sums may place the edge between two neighbours either way


@pytest.mark.parametrize("top_k", [1, 50, 1024, 2000])
def test_the_likeliest_of_many_tokens_are_kept_with_their_ties(top_k: int) -> None:
    """Rounded scores of a large vocabulary: tokens share them, and some are removed before."""
    row, logits = _row(SamplingParams(top_k=top_k, logit_bias={5: -100.0}), [1], []), np.round(_logits(4, 3000), 2)
    logits[::7] = -math.inf
    np.testing.assert_array_equal(row.scores(logits, []), _theirs(row, logits))


@settings(max_examples=60, deadline=None)
@given(
    presence=st.floats(-2.0, 2.0),
    frequency=st.floats(-2.0, 2.0),
    output=st.lists(st.integers(0, 7), max_size=8),
    drafted=st.lists(st.integers(0, 7), max_size=4),
)
def test_presence_and_frequency_count_output_and_earlier_drafts_only(
    presence: float, frequency: float, output: list[int], drafted: list[int]
) -> None:
    """OpenAI's formula; position j sees context + draft[:j] and nothing of the prompt."""
    params = SamplingParams(presence_penalty=presence, frequency_penalty=frequency)
    logits, row = _logits(3, 8), _row(params, [1, 2, 3], output)
    for j in range(len(drafted) + 1):
        seen = output + drafted[:j]
        expected = [float(logits[t]) - frequency * seen.count(t) - (presence if t in seen else 0.0) for t in range(8)]
        np.testing.assert_allclose(row.scores(logits, drafted[:j]), expected, rtol=1e-5, atol=1e-5)


def test_rows_keep_to_their_own_settings() -> None:
    """A batch of all kinds gives each position what it would get alone; the logits stay as they were."""
    kinds = [
        SamplingParams(temperature=0.0),
        SamplingParams(),
        SamplingParams(temperature=0.5, top_k=3),
        SamplingParams(top_p=0.7),
        SamplingParams(min_p=0.2, logit_bias={1: 5.0, 4: -100.0}),
        SamplingParams(temperature=0.0, repetition_penalty=2.0, min_tokens=3),
        SamplingParams(temperature=0.0, top_k=1, top_p=0.1, min_p=1.0),
        SamplingParams(presence_penalty=1.0, stop_token_ids=(2,), min_tokens=9, ignore_eos=True),
    ]
    rows = [_row(params, [1, 2], [3, i]) for i, params in enumerate(kinds)]
    index = np.array([7, 0, 3, 3, 1, 6, 2, 5, 4])
    logits = np.stack([_logits(i, 12) for i in range(len(index))])
    before = logits.copy()
    scores = SamplingBatch(rows, 12).process(torch.from_numpy(logits), index, [[]] * len(index))
    np.testing.assert_array_equal(logits, before)
    for n, i in enumerate(index.tolist()):
        np.testing.assert_array_equal(scores[n], _row(kinds[i], [1, 2], [3, i]).scores(logits[n], []))
    np.testing.assert_array_equal(scores[[1, 5]], logits[[1, 5]])


def test_min_tokens_masks_up_to_the_position_that_has_enough() -> None:
    """Position j of a window holds output token len(output) + j: there the mask may end inside the window."""
    params = SamplingParams(min_tokens=3, stop_token_ids=(5,))
    row, logits = _row(params, [1], [2]), np.zeros(8, dtype=np.float32)
    masked = [np.flatnonzero(row.scores(logits, [0] * offset) == -math.inf).tolist() for offset in range(4)]
    assert masked == [[0, 5], [0, 5], [], []]


def test_a_mask_never_takes_every_token() -> None:
    everything = SamplingParams(min_tokens=3, stop_token_ids=tuple(range(1, 8)), logit_bias={2: -100.0})
    assert np.isfinite(_row(everything, [1], []).scores(np.zeros(8, dtype=np.float32), [])).all()


def test_ties_at_the_edge_are_all_kept_wherever_they_stand() -> None:
    """Order of ids must not matter: the kept set of permuted logits is the permuted kept set."""
    logits = np.array([1.0, 2.0, 1.0, 3.0, 1.0, 0.0], dtype=np.float32)
    shuffled = [4, 0, 5, 3, 1, 2]
    for params in (SamplingParams(top_k=3), SamplingParams(top_p=0.9), SamplingParams(top_k=3, top_p=0.85)):
        row = _row(params, [1], [])
        kept = row.scores(logits, []) > -math.inf
        assert kept.tolist() == [True, True, True, True, True, False]
        np.testing.assert_array_equal(row.scores(logits[shuffled], []) > -math.inf, kept[shuffled])


def test_cuts_work_on_scores_that_already_lack_tokens() -> None:
    """A draft with a smaller vocabulary: fewer finite scores than top_k asks for, and no NaN."""
    logits = np.array([0.5, 1.0, -math.inf, -math.inf, -math.inf], dtype=np.float32)
    for params in (SamplingParams(top_k=4), SamplingParams(top_p=0.999999), SamplingParams(top_k=3, min_p=0.01)):
        np.testing.assert_array_equal(_row(params, [1], []).scores(logits, []), logits)


@pytest.mark.parametrize("params", [SamplingParams(top_p=0.5), SamplingParams(top_k=2, top_p=0.5), SamplingParams()])
def test_where_no_token_is_left_cuts_change_nothing(params: SamplingParams) -> None:
    """A grammar may leave none of the tokens that a draft model has."""
    logits = np.full(6, -math.inf, dtype=np.float32)
    np.testing.assert_array_equal(_row(params, [1], []).scores(logits, []), logits)


def test_counts_follow_the_text_over_many_rounds() -> None:
    """The state of a row that has been scored before is that of a new one with the same text."""
    params = SamplingParams(repetition_penalty=1.5, presence_penalty=0.3, frequency_penalty=0.2)
    row, random = _row(params, [1, 2], []), np.random.default_rng(5)
    for count in (0, 1, 3, 0, 2):
        row.tokens.extend(random.integers(0, 12, count).tolist())
        drafted = random.integers(0, 12, 3).tolist()
        alone = _row(params, [1, 2], row.tokens[2:])
        np.testing.assert_array_equal(row.scores(_logits(6, 12), drafted), alone.scores(_logits(6, 12), drafted))


def test_a_temperature_near_zero_stays_finite() -> None:
    assert np.isfinite(_row(SamplingParams(temperature=1e-40), [1], []).scores(_logits(13, 20), [])).all()

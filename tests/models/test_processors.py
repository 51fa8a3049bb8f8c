"""Scores after processing are those of `transformers`' processors in the same order, position by position."""

from __future__ import annotations

import math
from collections.abc import Sequence

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

from adaptspec.models.processors import Paths, Positions, Processor, Rules, SamplingRow, build
from adaptspec.request import SamplingParams

CPU = torch.device("cpu")
NONE = Paths(np.zeros((1, 0), dtype=np.int64))


def _row(params: SamplingParams, prompt: list[int], output: list[int], eos: tuple[int, ...] = (0,)) -> SamplingRow:
    return SamplingRow(params, 1, [*prompt, *output], len(prompt), eos)


def _built(rows: Sequence[SamplingRow], vocab: int) -> tuple[Processor, ...]:
    return build([Rules(row, vocab) for row in rows], vocab, CPU)


def _process(row: SamplingRow, logits: torch.Tensor) -> torch.Tensor:
    """One row's scores [V] at its next position."""
    zero, scores = np.zeros(1, dtype=np.int64), logits[None]
    for processor in _built([row], len(logits)):
        scores = processor(scores, Positions(zero, zero, NONE))
    return scores[0]


def _logits(seed: int, vocab: int, spread: float = 3.0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(0.0, spread, vocab).astype(np.float32))


def _theirs(row: SamplingRow, logits: torch.Tensor) -> torch.Tensor:
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
    return steps(torch.LongTensor([row.tokens]), torch.FloatTensor(logits[None].clone()))[0]


def _near_an_edge(scores: torch.Tensor, params: SamplingParams) -> bool:
    """Whether rounding alone may decide if a token is kept by top-p or min-p."""
    mass = scores.double().softmax(0).sort(descending=True).values
    reached, ratio = mass.cumsum(0), mass / mass[0]
    cuts = [(reached, params.top_p, params.top_p < 1.0), (ratio, params.min_p, params.min_p > 0.0)]
    return any(used and bool(((values - edge).abs() < 1e-5).any()) for values, edge, used in cuts)


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
    mine, theirs = _process(row, logits), _theirs(row, logits)
    assert torch.equal(mine == -math.inf, theirs == -math.inf)
    torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6)


def test_top_p_is_a_share_of_what_top_k_keeps() -> None:
    """The likeliest token has two thirds of the three that are kept, and a fifth of all."""
    row = _row(SamplingParams(top_k=3, top_p=0.6), [1], [])
    logits = torch.full((24,), -0.5)
    logits[:3] = torch.tensor([2.0, 1.0, 0.0])
    kept = _process(row, logits) > -math.inf
    assert kept.nonzero().flatten().tolist() == [0]


@pytest.mark.parametrize("spread", [0.01, 1.0, 4.0])
def test_a_nucleus_of_any_size_equals_that_of_transformers(spread: float) -> None:
    """The nucleus of a flat distribution is larger than the first guess, that of a peaked one smaller."""
    for seed in range(5):
        row, logits = _row(SamplingParams(top_p=0.9), [1], []), _logits(seed, 3000, spread)
        differ = (_process(row, logits) == -math.inf) != (_theirs(row, logits) == -math.inf)
        assert int(differ.sum()) <= 1  # float32 sums may place the edge between two neighbours either way


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
    logits, width = _logits(3, 8), len(drafted) + 1
    scores = logits.repeat(width, 1)
    index, offsets = np.zeros(width, dtype=np.int64), np.arange(width)
    for processor in _built([_row(params, [1, 2, 3], output)], 8):
        scores = processor(scores, Positions(index, offsets, Paths(np.array([[*drafted, 6]]))))
    for j in range(width):
        seen = output + drafted[:j]
        expected = [float(logits[t]) - frequency * seen.count(t) - (presence if t in seen else 0.0) for t in range(8)]
        np.testing.assert_allclose(scores[j].numpy(), expected, rtol=1e-5, atol=1e-5)


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
    logits = torch.stack([_logits(i, 12) for i in range(len(index))])
    before, scores = logits.clone(), logits
    for processor in _built(rows, 12):
        scores = processor(
            scores, Positions(index, np.zeros_like(index), Paths(np.zeros((len(rows), 0), dtype=np.int64)))
        )
    assert torch.equal(logits, before)
    for n, i in enumerate(index):
        torch.testing.assert_close(scores[n], _process(rows[i], logits[n]), rtol=1e-6, atol=1e-6)
    assert torch.equal(scores[1], logits[1])
    assert torch.equal(scores[5], logits[5])


def test_min_tokens_masks_up_to_the_position_that_has_enough() -> None:
    """Position j of a window holds output token len(output) + j: there the mask may end inside the window."""
    params = SamplingParams(min_tokens=3, stop_token_ids=(5,))
    index, offsets = np.zeros(4, dtype=np.int64), np.arange(4)
    (processor,) = _built([_row(params, [1], [2])], 8)
    scores = processor(torch.zeros(4, 8), Positions(index, offsets, Paths(np.zeros((1, 3), dtype=np.int64))))
    assert (scores == -math.inf).nonzero().tolist() == [[0, 0], [0, 5], [1, 0], [1, 5]]


def test_a_mask_never_takes_every_token() -> None:
    everything = SamplingParams(min_tokens=3, stop_token_ids=tuple(range(1, 8)), logit_bias={2: -100.0})
    assert torch.isfinite(_process(_row(everything, [1], []), torch.zeros(8))).all()


def test_ties_at_the_edge_are_all_kept_wherever_they_stand() -> None:
    """Order of ids must not matter: the kept set of permuted logits is the permuted kept set."""
    logits = torch.tensor([1.0, 2.0, 1.0, 3.0, 1.0, 0.0])
    shuffled = torch.tensor([4, 0, 5, 3, 1, 2])
    for params in (SamplingParams(top_k=3), SamplingParams(top_p=0.9), SamplingParams(top_k=3, top_p=0.85)):
        kept = _process(_row(params, [1], []), logits) > -math.inf
        assert kept.tolist() == [True, True, True, True, True, False]
        assert torch.equal(_process(_row(params, [1], []), logits[shuffled]) > -math.inf, kept[shuffled])


def test_cuts_work_on_scores_that_already_lack_tokens() -> None:
    """A draft with a smaller vocabulary: fewer finite scores than top_k asks for, and no NaN."""
    logits = torch.tensor([0.5, 1.0, -math.inf, -math.inf, -math.inf])
    for params in (SamplingParams(top_k=4), SamplingParams(top_p=0.999999), SamplingParams(top_k=3, min_p=0.01)):
        assert torch.equal(_process(_row(params, [1], []), logits), logits)


def test_a_temperature_near_zero_stays_finite() -> None:
    scores = _process(_row(SamplingParams(temperature=1e-40), [1], []), _logits(13, 20))
    assert torch.isfinite(scores).all()

"""Counterfactual scores of draft temperatures: they must be what drafting at that temperature would have come to."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from adaptspec.models.draft import Draft
from adaptspec.models.sampling import SamplingBatch
from adaptspec.request import SamplingParams
from adaptspec.types import FloatArray, IntArray
from adaptspec.verification.coupled import Coupled
from adaptspec.verification.draft_scores import score_temperatures
from adaptspec.verification.method import VerifyResult
from adaptspec.verification.rejection import Rejection

from .tables import DRAFT, TARGET, VOCAB, Drafter, make_rows

AT = (0.6, 1.0, 1.5)


def _round(params: SamplingParams, rows: int, method: Coupled | Rejection) -> tuple[torch.Tensor, Draft, SamplingBatch]:
    """One drafted token for each row, with its scores kept."""
    members = make_rows(params, range(rows))
    sampling = SamplingBatch(members, VOCAB)
    draft = Drafter().propose(members, sampling, np.ones(rows, dtype=np.int64), method)
    context = np.array([members[0].tokens] * rows)
    scores = sampling.process(DRAFT.logits(context), np.arange(rows), [[]] * rows)[:, None]
    both = np.stack((context, np.concatenate((context[:, 1:], draft.tokens), axis=1)), axis=1).reshape(-1, 3)
    kept = Draft(draft.tokens, draft.counts, draft.confidence, np.ones((rows, 1)), draft.distribution, scores=scores)
    return TARGET.logits(both), kept, sampling


@pytest.mark.parametrize("number", range(3))
def test_agreement_is_what_a_draft_at_that_temperature_would_have_met(number: int) -> None:
    """Coupled: draw the draft at the temperature with the shared noise, and compare with the target's own tokens."""

    def fixed(index: IntArray, entropy: FloatArray) -> FloatArray:
        return np.full(len(index), AT[number])

    logits, draft, sampling = _round(SamplingParams(), 6, Coupled())
    result = Coupled().verify(logits, draft, sampling)
    scored = score_temperatures(
        logits, draft, result, sampling, shares_noise=np.ones(6, dtype=np.bool_), temperatures=AT
    )
    assert scored is not None
    members = make_rows(SamplingParams(), range(6))
    other = Drafter(temperature=fixed).propose(members, sampling, np.ones(6, dtype=np.int64), Coupled())
    target = sampling.choose(logits[::2].numpy(), np.arange(6), np.zeros(6, dtype=np.int64))
    np.testing.assert_array_equal(scored[:, 0, number] == 1.0, other.tokens[:, 0] == target)


def test_overlap_is_the_probability_to_be_accepted() -> None:
    logits, draft, sampling = _round(SamplingParams(temperature=0.8), 3, Rejection())
    result = VerifyResult(np.zeros(3, dtype=np.int64), np.zeros(3, dtype=np.int64))
    scored = score_temperatures(
        logits, draft, result, sampling, shares_noise=np.zeros(3, dtype=np.bool_), temperatures=AT
    )
    assert scored is not None
    p = (logits[0].double() / 0.8).softmax(0)
    for number, at in enumerate(AT):
        q = (DRAFT.logits(np.array([[1, 3, 1]]))[0].double() / 0.8 / at).softmax(0)
        np.testing.assert_allclose(scored[:, 0, number], float(torch.minimum(p, q).sum()), atol=1e-6)


def test_only_tokens_that_verification_reached_are_scored_and_only_so_many() -> None:
    rows, depth = 5, 4
    members = make_rows(SamplingParams(), range(rows))
    sampling = SamplingBatch(members, VOCAB)
    entropy = np.ones((rows, depth))
    entropy[4] = np.nan  # a lookup, that has no distribution
    counts = np.array([4, 4, 2, 0, 4])
    tokens, scores = np.zeros((rows, depth), dtype=np.int64), np.zeros((rows, depth, VOCAB), dtype=np.float32)
    draft = Draft(tokens, counts, entropy, entropy, scores=scores)
    logits = torch.zeros(int((counts + 1).sum()), VOCAB)
    result = VerifyResult(np.array([0, 3, 2, 0, 4]), np.zeros(rows, dtype=np.int64))
    scored = score_temperatures(
        logits, draft, result, sampling, shares_noise=np.zeros(rows, dtype=np.bool_), temperatures=AT
    )
    assert scored is not None
    assert scored.shape == (rows, depth, len(AT))
    assert np.count_nonzero(~np.isnan(scored[:, :, 0]), axis=1).tolist() == [1, 4, 2, 0, 0]
    deep = VerifyResult(np.array([4, 4, 2, 0, 4]), np.zeros(rows, dtype=np.int64))
    many = score_temperatures(
        logits, draft, deep, sampling, shares_noise=np.zeros(rows, dtype=np.bool_), temperatures=AT
    )
    assert many is not None
    found = np.count_nonzero(~np.isnan(many[:, :, 0]), axis=1)
    assert found.sum() == 8
    assert (found > 0).tolist() == [True, True, True, False, False]

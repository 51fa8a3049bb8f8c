"""The promise of exactness: three tokens of speculative sampling have exactly the target's joint distribution.

The G-test is only worth something if it can fail, so wrong samplers are put before it as well.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch

from adaptspec.models.draft import Draft
from adaptspec.models.sampling import SamplingBatch
from adaptspec.types import SamplingParams
from adaptspec.verification.method import Verdict
from adaptspec.verification.registry import METHODS
from adaptspec.verification.rejection import Rejection
from adaptspec.verification.windows import Windows

from .tables import OUT, Drafter, adaptive_depths, expected_joint, g_test, make_rows, speculate

SEEDS = range(4000)
LEAST = 1e-3

PROCESSORS: Mapping[str, SamplingParams] = {
    "none": SamplingParams(),
    "temperature": SamplingParams(temperature=0.6),
    "top-k": SamplingParams(top_k=3),
    "top-p": SamplingParams(top_p=0.8),
    "min-p": SamplingParams(min_p=0.15),
    "presence": SamplingParams(presence_penalty=1.2),
    "frequency": SamplingParams(frequency_penalty=0.9),
    "repetition": SamplingParams(repetition_penalty=1.7),
    "logit-bias": SamplingParams(logit_bias={0: 1.0, 3: -2.0}),
    "min-tokens": SamplingParams(min_tokens=2, stop_token_ids=(0,)),
    "all": SamplingParams(
        temperature=1.3,
        top_k=4,
        top_p=0.95,
        min_p=0.02,
        presence_penalty=0.4,
        frequency_penalty=0.3,
        repetition_penalty=1.2,
        logit_bias={2: 0.7},
        min_tokens=1,
    ),
}
DRAFTERS = {"draft-model": Drafter(stop_below=0.2), "point-mass": Drafter(point=True)}


@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("name", METHODS)
def test_joint_distribution_is_the_targets(name: str, drafter: str, processor: str) -> None:
    params = PROCESSORS[processor]
    tokens = speculate(make_rows(params, SEEDS), METHODS[name], DRAFTERS[drafter], adaptive_depths, OUT)
    assert g_test(tokens, expected_joint(params)) > LEAST


def test_coupled_stays_exact_under_a_stop_rule_that_drops_unlikely_tokens() -> None:
    tokens = speculate(
        make_rows(SamplingParams(), SEEDS), METHODS["coupled"], Drafter(drop_below=0.4), adaptive_depths, OUT
    )
    assert g_test(tokens, expected_joint(SamplingParams())) > LEAST


def test_the_test_finds_the_bias_of_dropping_unlikely_tokens_under_rejection() -> None:
    tokens = speculate(
        make_rows(SamplingParams(), SEEDS), METHODS["rejection"], Drafter(drop_below=0.4), adaptive_depths, OUT
    )
    assert g_test(tokens, expected_joint(SamplingParams())) < LEAST


class _NoResidual(Rejection):
    """Wrong on purpose: after a rejection it draws from p, not from what is left of it."""

    def verify(self, logits: torch.Tensor, draft: Draft, sampling: SamplingBatch) -> Verdict:
        verdict = super().verify(logits, draft, sampling)
        windows = Windows.of(draft.counts)
        scores = sampling.process(logits, windows.index, windows.offsets, draft.tokens)
        ends = torch.from_numpy(windows.starts + verdict.accepted)
        following = sampling.choose(scores[ends], np.arange(len(ends)), verdict.accepted)
        return Verdict(verdict.accepted, following.numpy())


class _NoCorrection(Rejection):
    """Wrong on purpose: keeps every drafted token."""

    def verify(self, logits: torch.Tensor, draft: Draft, sampling: SamplingBatch) -> Verdict:
        return Verdict(draft.counts, super().verify(logits, draft, sampling).following)


@pytest.mark.parametrize("wrong", [_NoResidual(), _NoCorrection()])
def test_the_test_finds_biased_methods(wrong: Rejection) -> None:
    tokens = speculate(make_rows(SamplingParams(), SEEDS), wrong, Drafter(), adaptive_depths, OUT)
    assert g_test(tokens, expected_joint(SamplingParams())) < LEAST


def test_the_test_finds_greedy_drafts_that_claim_to_be_sampled() -> None:
    drafter = Drafter(point=True, claims=True)
    tokens = speculate(make_rows(SamplingParams(), SEEDS), METHODS["rejection"], drafter, adaptive_depths, OUT)
    assert g_test(tokens, expected_joint(SamplingParams())) < LEAST


def test_the_test_finds_a_wrong_temperature() -> None:
    rows = make_rows(SamplingParams(temperature=0.9), SEEDS)
    tokens = speculate(rows, METHODS["coupled"], Drafter(), adaptive_depths, OUT)
    assert g_test(tokens, expected_joint(SamplingParams())) < LEAST

"""The promise of exactness: three tokens of speculative sampling have exactly the target's joint distribution.

The G-test is only worth something if it can fail, so wrong samplers are put before it as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch

from adaptspec.arrays import FloatArray, IntArray
from adaptspec.control.algorithms.algorithm import ExpectedValue
from adaptspec.control.stopping import AdaEdlStop, MarginalGoodputStop, ThresholdStop, svip_stop
from adaptspec.decision import StopTable
from adaptspec.draft_tree import DraftTree
from adaptspec.models.sampling import SamplingBatch
from adaptspec.request import SamplingParams
from adaptspec.verification import make_method
from adaptspec.verification.method import Positions, VerifyResult, position_starts
from adaptspec.verification.rejection import Rejection
from tests.control.asking import choice, terms
from tests.verification.tables import OUT, Drafter, adaptive_depths, expected_joint, g_test, make_rows, speculate

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
LOSSLESS = ("coupled", "rejection", "block")


def by_entropy(index: IntArray, entropy: FloatArray) -> FloatArray:
    """Draft temperatures from 0.5 for sure drafts to 1.6 for unsure ones."""
    return np.asarray(0.5 + 1.1 * entropy / np.log(5.0))


@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("name", LOSSLESS)
def test_joint_distribution_is_the_targets(name: str, drafter: str, processor: str) -> None:
    params = PROCESSORS[processor]
    tokens = speculate(make_rows(params, SEEDS), make_method(name), DRAFTERS[drafter], adaptive_depths, OUT)
    assert g_test(tokens, expected_joint(params)) > LEAST


def marginal(rows: int) -> StopTable | None:
    """The ratio rule where about half of the drafts go on."""
    sure = 0.35 + 0.65 * (np.arange(10) + 0.5) / 10
    model = terms(np.full((rows, 3), 0.7), np.tile(sure, (rows, 1)), 1e-4, 1e-4)
    curve = 1e-3 + 2e-4 * np.arange(3.0 * rows + 1.0)
    return MarginalGoodputStop().table(choice(ExpectedValue(1000.0, curve, (model,), {0: rows}), rows))


STOPS: Mapping[str, Callable[[int], StopTable | None]] = {
    "confidence": lambda rows: ThresholdStop(confidence=0.4).table(choice(None, rows)),
    "svip": lambda rows: svip_stop(threshold=0.415).table(choice(None, rows)),
    "adaedl": lambda rows: AdaEdlStop(threshold=0.52).table(choice(None, rows)),
    "marginal-goodput": marginal,
}


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("name", ["rejection", "block"])
def test_stop_rules_change_no_distribution(name: str, stop: str) -> None:
    """They look at tokens that are submitted all the same; under `coupled` any rule is exact."""
    rows = make_rows(SamplingParams(), SEEDS)
    tokens = speculate(rows, make_method(name), Drafter(stop=STOPS[stop]), lambda _, last: np.full_like(last, 3), OUT)
    assert g_test(tokens, expected_joint(SamplingParams())) > LEAST


@pytest.mark.parametrize("processor", ["none", "all"])
@pytest.mark.parametrize("name", LOSSLESS)
def test_a_draft_temperature_changes_no_distribution(name: str, processor: str) -> None:
    """Sharpened and flattened by each token's entropy: exact, since q is what was drawn from."""
    params, drafter = PROCESSORS[processor], Drafter(stop_below=0.2, temperature=by_entropy)
    tokens = speculate(make_rows(params, SEEDS), make_method(name), drafter, adaptive_depths, OUT)
    assert g_test(tokens, expected_joint(params)) > LEAST


@pytest.mark.parametrize("name", ["rejection", "block"])
def test_the_test_finds_a_draft_temperature_that_is_kept_from_verification(name: str) -> None:
    drafter = Drafter(temperature=by_entropy, hides_temperature=True)
    tokens = speculate(make_rows(SamplingParams(), SEEDS), make_method(name), drafter, adaptive_depths, OUT)
    assert g_test(tokens, expected_joint(SamplingParams())) < LEAST


def test_coupled_stays_exact_under_a_stop_rule_that_drops_unlikely_tokens() -> None:
    tokens = speculate(
        make_rows(SamplingParams(), SEEDS), make_method("coupled"), Drafter(drop_below=0.4), adaptive_depths, OUT
    )
    assert g_test(tokens, expected_joint(SamplingParams())) > LEAST


@pytest.mark.parametrize("name", ["rejection", "block"])
def test_the_test_finds_the_bias_of_dropping_unlikely_tokens(name: str) -> None:
    tokens = speculate(
        make_rows(SamplingParams(), SEEDS), make_method(name), Drafter(drop_below=0.4), adaptive_depths, OUT
    )
    assert g_test(tokens, expected_joint(SamplingParams())) < LEAST


@pytest.mark.parametrize("name", ["rejection", "block"])
def test_tokens_may_be_left_out_for_what_is_known_without_them(name: str) -> None:
    """By the entropy of what they would be drawn from, say: likely tokens and unlikely ones alike."""
    tokens = speculate(
        make_rows(SamplingParams(), SEEDS), make_method(name), Drafter(drop_above=1.2), adaptive_depths, OUT
    )
    assert g_test(tokens, expected_joint(SamplingParams())) > LEAST


class _NoResidual(Rejection):
    """Wrong on purpose: after a rejection it draws from p, not from what is left of it."""

    def verify(self, logits: torch.Tensor, draft: DraftTree, sampling: SamplingBatch) -> VerifyResult:
        result = super().verify(logits, draft, sampling)
        positions = Positions.of(draft)
        scores = sampling.process(logits, positions.row, positions.paths)
        ends = position_starts(draft) + result.accepted
        return replace(result, next_token=sampling.choose(scores[ends], np.arange(len(ends)), result.accepted))


class _NoCorrection(Rejection):
    """Wrong on purpose: keeps every drafted token."""

    def verify(self, logits: torch.Tensor, draft: DraftTree, sampling: SamplingBatch) -> VerifyResult:
        return VerifyResult.of_chains(draft.counts, super().verify(logits, draft, sampling).next_token)


@pytest.mark.parametrize("wrong", [_NoResidual(), _NoCorrection()])
def test_the_test_finds_biased_methods(wrong: Rejection) -> None:
    tokens = speculate(make_rows(SamplingParams(), SEEDS), wrong, Drafter(), adaptive_depths, OUT)
    assert g_test(tokens, expected_joint(SamplingParams())) < LEAST


def test_the_test_finds_greedy_drafts_that_claim_to_be_sampled() -> None:
    drafter = Drafter(point=True, claims=True)
    tokens = speculate(make_rows(SamplingParams(), SEEDS), make_method("rejection"), drafter, adaptive_depths, OUT)
    assert g_test(tokens, expected_joint(SamplingParams())) < LEAST


def test_the_test_finds_a_wrong_temperature() -> None:
    rows = make_rows(SamplingParams(temperature=0.9), SEEDS)
    tokens = speculate(rows, make_method("coupled"), Drafter(), adaptive_depths, OUT)
    assert g_test(tokens, expected_joint(SamplingParams())) < LEAST

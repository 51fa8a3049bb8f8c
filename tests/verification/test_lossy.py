"""The lossy methods: which tokens they keep and which never; the target's own token always stays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.arrays import BoolArray, IntArray
from adaptspec.models.noise import Floats
from adaptspec.models.sampling import SamplingBatch
from adaptspec.request import SamplingParams
from adaptspec.verification.lossy import GoodEnough, Threshold, Typical
from adaptspec.verification.method import position_starts

from .tables import VOCAB, Drafter, adaptive_depths, chain_draft, decode_plainly, make_rows, speculate


@dataclass(frozen=True)
class _All(GoodEnough):
    kept: bool

    def good_enough(self, scores: Floats, tokens: IntArray, index: IntArray, sampling: SamplingBatch) -> BoolArray:
        return np.full(len(tokens), self.kept)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), counts=st.lists(st.integers(0, 3), min_size=1, max_size=4))
def test_the_targets_own_token_comes_after_the_accepted_ones(seed: int, counts: list[int]) -> None:
    random = np.random.default_rng(seed)
    rows = make_rows(SamplingParams(temperature=0.0), range(len(counts)))
    sampling = SamplingBatch(rows, VOCAB)
    logits = torch.from_numpy(random.normal(size=(sum(counts) + len(counts), VOCAB)).astype(np.float32))
    tokens = random.integers(0, VOCAB, (len(counts), max(counts)))
    draft = chain_draft(tokens, counts=counts)
    target, starts = logits.argmax(1).numpy(), position_starts(draft)
    for lossy in (False, True):
        result = _All(lossy).verify(logits, draft, sampling)
        assert (result.next_token == target[starts + result.accepted]).all()
        for i, count in enumerate(counts):
            agreed = [bool(target[starts[i] + j] == tokens[i, j]) for j in range(count)]
            assert result.accepted[i] == (count if lossy else [*agreed, False].index(False))


SHARES = torch.tensor([0.50, 0.30, 0.15, 0.04, 0.01])


def _judged(token: int, method: Threshold, params: SamplingParams = SamplingParams(temperature=0.0)) -> tuple[int, int]:
    """One drafted token where the target has SHARES: whether it is accepted, and the next token."""
    draft = chain_draft(np.array([[token]]))
    rows = make_rows(params, [0])
    result = method.verify(SHARES.log().repeat(2, 1), draft, SamplingBatch(rows, VOCAB))
    return int(result.accepted[0]), int(result.next_token[0])


@pytest.mark.parametrize(
    ("token", "kept"),
    [(0, 1), (1, 1), (2, 1), (3, 0), (4, 0)],
    ids=["argmax", "above high", "between, in the top 3", "below low", "far below"],
)
def test_thresholds_decide(token: int, kept: int) -> None:
    assert _judged(token, Threshold(high=0.25, low=0.05, top=3)) == (kept, 0)


def test_a_token_that_the_rules_remove_is_never_kept() -> None:
    """Thresholds of 0 accept any token that min_tokens, masks and top-k allow."""
    banned = SamplingParams(temperature=0.0, logit_bias={4: -100.0}, top_k=2)
    assert _judged(4, Threshold(high=0.0, low=0.0), SamplingParams(temperature=1.0, top_k=2))[0] == 0
    assert _judged(4, Threshold(high=0.01, low=0.01), banned)[0] == 0


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**40), temperature=st.sampled_from([0.0, 0.7, 1.3]))
def test_thresholds_of_one_leave_plain_decoding(seed: int, temperature: float) -> None:
    """high = low = 1 keeps only the tokens that the target draws itself."""
    params = SamplingParams(temperature=temperature)
    strict = Threshold(high=1.0, low=1.0, top=1)
    tokens = speculate(make_rows(params, [seed]), strict, Drafter(), adaptive_depths, 8)
    np.testing.assert_array_equal(tokens, decode_plainly(make_rows(params, [seed]), 8))


def _kept(token: int, shares: list[float], seeds: range = range(50)) -> float:
    """The share of rows that keep a drafted token where the target has these shares."""
    rows = make_rows(SamplingParams(), seeds)
    draft = chain_draft(np.full((len(rows), 1), token))
    logits = torch.tensor(shares).log().repeat(2 * len(rows), 1)
    return float(Typical().verify(logits, draft, SamplingBatch(rows, VOCAB)).accepted.mean())


def test_an_unlikely_token_is_kept_where_the_target_is_unsure() -> None:
    """At an entropy of 1.6 the bound is delta * exp(-1.6) = 0.06; where the target is sure it is epsilon."""
    assert _kept(3, [0.2, 0.2, 0.2, 0.2, 0.2]) == 1.0
    assert _kept(3, [0.24, 0.23, 0.23, 0.07, 0.23]) == 1.0
    assert _kept(3, [0.91, 0.01, 0.01, 0.06, 0.01]) < 0.3  # only where the target draws it itself


def test_greedy_rows_stay_exact() -> None:
    greedy = SamplingParams(temperature=0.0)
    tokens = speculate(make_rows(greedy, [1, 2]), Typical(), Drafter(), adaptive_depths, 8)
    np.testing.assert_array_equal(tokens, decode_plainly(make_rows(greedy, [1, 2]), 8))

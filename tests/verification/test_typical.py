"""The lossy method `typical`: the bound falls with the target's entropy, and greedy rows stay exact."""

from __future__ import annotations

import numpy as np
import torch

from adaptspec.models.draft import Draft
from adaptspec.models.sampling import SamplingBatch
from adaptspec.types import SamplingParams
from adaptspec.verification.typical import Typical

from .tables import CPU, VOCAB, Drafter, adaptive_depths, decode_plainly, make_rows, speculate


def _kept(token: int, shares: list[float], seeds: range = range(50)) -> float:
    """How often a drafted token stays where the target has these shares."""
    rows = make_rows(SamplingParams(), seeds)
    nothing = np.full((len(rows), 1), np.nan)
    draft = Draft(np.full((len(rows), 1), token), np.ones(len(rows), dtype=np.int64), nothing, nothing)
    logits = torch.tensor(shares).log().repeat(2 * len(rows), 1)
    return float(Typical().verify(logits, draft, SamplingBatch(rows, VOCAB, CPU)).accepted.mean())


def test_where_many_tokens_would_do_an_unlikely_one_is_kept() -> None:
    """H = 1.6: the bound is delta * exp(-H) = 0.06; where the target is sure it is epsilon."""
    assert _kept(3, [0.2, 0.2, 0.2, 0.2, 0.2]) == 1.0
    assert _kept(3, [0.24, 0.23, 0.23, 0.07, 0.23]) == 1.0
    assert _kept(3, [0.91, 0.01, 0.01, 0.06, 0.01]) < 0.3  # only where the target draws it itself


def test_greedy_rows_stay_exact() -> None:
    greedy = SamplingParams(temperature=0.0)
    tokens = speculate(make_rows(greedy, [1, 2]), Typical(), Drafter(), adaptive_depths, 8)
    np.testing.assert_array_equal(tokens, decode_plainly(make_rows(greedy, [1, 2]), 8))

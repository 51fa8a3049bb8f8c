"""The lossy method `threshold`: what its marks keep, and what they may never keep."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.models.draft import Draft
from adaptspec.models.sampling import SamplingBatch
from adaptspec.types import IntArray, SamplingParams
from adaptspec.verification.coupled import Coupled
from adaptspec.verification.threshold import Threshold

from .tables import CPU, TARGET, VOCAB, Drafter, adaptive_depths, decode_plainly, make_rows, speculate

GREEDY = SamplingParams(temperature=0.0)
SHARES = torch.tensor([0.50, 0.30, 0.15, 0.04, 0.01])


def _verdict(token: int, method: Threshold, params: SamplingParams = GREEDY) -> tuple[int, int]:
    """One drafted token, judged where the target has SHARES: accepted, and what follows."""
    nothing = np.full((1, 1), np.nan)
    draft = Draft(np.array([[token]]), np.array([1]), nothing, nothing)
    rows = make_rows(params, [0])
    verdict = method.verify(SHARES.log().repeat(2, 1), draft, SamplingBatch(rows, VOCAB, CPU))
    return int(verdict.accepted[0]), int(verdict.following[0])


@pytest.mark.parametrize(
    ("token", "kept"),
    [(0, 1), (1, 1), (2, 1), (3, 0), (4, 0)],
    ids=["argmax", "above high", "between, in the top 3", "below low", "far below"],
)
def test_marks_decide(token: int, kept: int) -> None:
    assert _verdict(token, Threshold(high=0.25, low=0.05, top=3)) == (kept, 0)


def test_between_the_marks_only_the_top_choices_are_kept() -> None:
    assert _verdict(2, Threshold(high=0.9, low=0.05, top=2))[0] == 0
    assert _verdict(2, Threshold(high=0.9, low=0.05, top=3))[0] == 1


def test_a_token_the_processors_rule_out_is_never_kept() -> None:
    """Marks of 0 accept anything but what cannot be: min_tokens, masks and top-k still hold."""
    banned = SamplingParams(temperature=0.0, logit_bias={4: -100.0}, top_k=2)
    assert _verdict(4, Threshold(high=0.0, low=0.0), SamplingParams(temperature=1.0, top_k=2))[0] == 0
    assert _verdict(4, Threshold(high=0.01, low=0.01), banned)[0] == 0


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**40), temperature=st.sampled_from([0.0, 0.7, 1.3]))
def test_marks_nobody_reaches_leave_plain_decoding(seed: int, temperature: float) -> None:
    """high = low = 1 keeps what the target draws itself and nothing else."""
    params = SamplingParams(temperature=temperature)
    strict = Threshold(high=1.0, low=1.0, top=1)
    tokens = speculate(make_rows(params, [seed]), strict, Drafter(), adaptive_depths, 8)
    np.testing.assert_array_equal(tokens, decode_plainly(make_rows(params, [seed]), 8))


def test_it_never_accepts_fewer_than_coupled() -> None:
    rows = make_rows(SamplingParams(), range(500))
    sampling = SamplingBatch(rows, VOCAB, CPU)
    draft = Drafter().propose(rows, sampling, np.full(500, 3), Coupled())
    contexts: IntArray = np.array(
        [[*row.tokens, *draft.tokens[i, :n]][-3:] for i, row in enumerate(rows) for n in range(4)]
    )
    logits = TARGET.logits(contexts)
    strict = Coupled().verify(logits, draft, sampling).accepted
    loose = Threshold().verify(logits, draft, sampling).accepted
    assert (loose >= strict).all()
    assert loose.mean() > strict.mean()

"""Coupled verification must give plain decoding's tokens: same seed, same text, whatever was drafted and how deep."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.arrays import IntArray
from adaptspec.models.sampling import RowSampling, SamplingBatch
from adaptspec.request import SamplingParams
from adaptspec.verification.coupled import Coupled

from .tables import DRAFT, TARGET, Drafter, Table, decode_plainly, make_rows, speculate, target_logits

PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.5, 1.0, 1.5]),
    top_k=st.integers(0, 5),
    top_p=st.sampled_from([0.5, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.1]),
    presence_penalty=st.sampled_from([0.0, 1.0]),
    frequency_penalty=st.sampled_from([0.0, 0.7]),
    repetition_penalty=st.sampled_from([1.0, 1.5]),
    logit_bias=st.sampled_from([{}, {0: 1.5, 2: -1.0}]),
    min_tokens=st.integers(0, 6),
)
DRAFTERS = st.sampled_from(
    [
        Drafter(),
        Drafter(point=True),
        Drafter(drop_below=0.5),
        Drafter(Table(9)),
        Drafter(TARGET),
        Drafter(DRAFT, point=True),
    ]
)


@settings(max_examples=60, deadline=None)
@given(
    params=st.lists(PARAMS, min_size=1, max_size=4),
    seed=st.integers(-(2**63) + 1, 2**63 - 1),
    schedule=st.integers(0, 2**32),
    drafter=DRAFTERS,
)
def test_tokens_equal_plain_decoding_at_every_depth(
    params: list[SamplingParams], seed: int, schedule: int, drafter: Drafter
) -> None:
    """Rows with different settings: each alone in plain decoding, all together in the speculating batch."""
    random = np.random.default_rng(schedule)

    def depths(number: int, accepted: IntArray) -> IntArray:
        return random.integers(0, 5, len(accepted))

    def rows() -> list[RowSampling]:
        return [make_rows(p, [seed ^ i])[0] for i, p in enumerate(params)]

    plain = decode_plainly(rows(), 10)
    np.testing.assert_array_equal(speculate(rows(), Coupled(), drafter, depths, 10), plain)


def test_a_draft_that_is_the_target_is_always_accepted() -> None:
    """Draft and target share the noise: with independent draws some tokens would be rejected."""
    rows = make_rows(SamplingParams(temperature=1.5), range(200))
    sampling = SamplingBatch(rows, 5)
    draft = Drafter(TARGET).propose(rows, sampling, np.full(200, 4), Coupled())
    result = Coupled().verify(target_logits(rows, draft), draft, sampling)
    assert (result.accepted == 4).all()

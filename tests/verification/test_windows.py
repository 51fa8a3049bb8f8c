"""The packed layout of a verify pass, and counting the agreeing run, against loops that cannot be wrong."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from adaptspec.models.draft import Draft
from adaptspec.verification.windows import Windows, agreement, agreement_of_many


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6))
def test_layout_lists_each_rows_drafts_and_one_more(counts: list[int]) -> None:
    windows = Windows.of(np.array(counts))
    expected = [(row, offset) for row, count in enumerate(counts) for offset in range(count + 1)]
    assert list(zip(windows.index.tolist(), windows.offsets.tolist(), strict=True)) == expected
    assert [expected[start] for start in windows.starts] == [(row, 0) for row in range(len(counts))]


@given(st.integers(0, 2**32), st.lists(st.integers(0, 4), min_size=1, max_size=6))
def test_agreement_keeps_the_run_that_equals_the_target(seed: int, counts: list[int]) -> None:
    random = np.random.default_rng(seed)
    tokens = random.integers(0, 2, (len(counts), max(counts)))
    target = random.integers(0, 2, sum(counts) + len(counts))
    nothing = np.full(tokens.shape, np.nan)
    draft = Draft(tokens, np.array(counts), nothing, nothing)
    verdict = agreement(draft, torch.from_numpy(target))
    plain = agreement_of_many(draft, target)
    assert (plain.accepted == verdict.accepted).all(), "the short path for one row must agree with the plain one"
    assert (plain.following == verdict.following).all()
    start = 0
    for row, count in enumerate(counts):
        own = target[start : start + count + 1]
        accepted = 0
        while accepted < count and tokens[row, accepted] == own[accepted]:
            accepted += 1
        assert (verdict.accepted[row], verdict.following[row]) == (accepted, own[accepted])
        start += count + 1

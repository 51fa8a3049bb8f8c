"""Methods by name, the packed layout of a verify pass, and the run of tokens that agree."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adaptspec.errors import ConfigError
from adaptspec.verification import METHODS, make_method
from adaptspec.verification.lossy import Threshold
from adaptspec.verification.method import Windows, agreement

from .tables import point_draft


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6))
def test_layout_lists_each_rows_drafts_and_one_more(counts: list[int]) -> None:
    windows = Windows.of(point_draft(np.zeros((len(counts), max(counts)), dtype=np.int64), counts=counts))
    expected = [(row, offset) for row, count in enumerate(counts) for offset in range(count + 1)]
    assert list(zip(windows.index.tolist(), windows.offsets.tolist(), strict=True)) == expected
    assert [expected[start] for start in windows.starts] == [(row, 0) for row in range(len(counts))]


@given(st.integers(0, 2**32), st.lists(st.integers(0, 4), min_size=1, max_size=6))
def test_agreement_keeps_the_run_that_equals_the_target(seed: int, counts: list[int]) -> None:
    random = np.random.default_rng(seed)
    tokens = random.integers(0, 2, (len(counts), max(counts)))
    target = random.integers(0, 2, sum(counts) + len(counts))
    draft = point_draft(tokens, counts=counts)
    result = agreement(draft, torch.from_numpy(target))
    start = 0
    for row, count in enumerate(counts):
        own = target[start : start + count + 1]
        accepted = 0
        while accepted < count and tokens[row, accepted] == own[accepted]:
            accepted += 1
        assert (result.accepted[row], result.following[row]) == (accepted, own[accepted])
        start += count + 1


def test_every_method_is_found_by_its_own_name_and_says_whether_it_is_lossy() -> None:
    lossy = {name: make_method(name).lossy for name in METHODS}
    assert lossy == {"coupled": False, "rejection": False, "block": False, "threshold": True, "typical": True}
    assert all(make_method(name).name == name for name in METHODS)


def test_a_method_that_shares_the_noise_needs_no_distribution() -> None:
    """A draft must meet the noise of the target (coupled) or be verified against what it was drawn from."""
    for name in METHODS:
        assert make_method(name).shares_noise is not make_method(name).needs_distribution


def test_parameters_reach_the_method() -> None:
    assert make_method("threshold", {"high": 0.5, "top": 2}) == Threshold(high=0.5, top=2)


def test_equal_parameters_make_equal_methods() -> None:
    """The engine keeps one of each: policies with the same method share a verify pass."""
    assert make_method("coupled") == make_method("coupled")
    assert make_method("typical") != make_method("typical", {"epsilon": 0.2})
    assert len({make_method("threshold"), make_method("threshold"), make_method("threshold", {"high": 0.9})}) == 2


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'copuled'; use one of: block, coupled, rejection, threshold, typical"):
        make_method("copuled")


def test_an_unknown_parameter_is_refused() -> None:
    with pytest.raises(ConfigError, match="'coupled' cannot be built with high"):
        make_method("coupled", {"high": 0.5})

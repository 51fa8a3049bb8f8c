"""Wishes come from anybody, and are read where an exception would end the server: none may be raised."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptspec.hosts.settings import IGNORED, read_wishes
from adaptspec.request import SpeculationParams

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
NAMES = st.sampled_from(["adaptspec_policy", "adaptspec_task", "adaptspec_max_depth", "adaptspec_", "adaptspec_depth"])


@given(ANYTHING | st.dictionaries(NAMES | st.text() | st.integers(), ANYTHING))
def test_nothing_is_raised_and_what_is_taken_can_be_used(extra: Any) -> None:
    wishes, ignored = read_wishes(extra)
    assert wishes.max_depth is None or 0 <= wishes.max_depth < 2**31
    assert wishes.policy is None or isinstance(wishes.policy, str)
    assert set(ignored.values()) <= set(IGNORED)
    assert set(ignored) <= (set(extra) if isinstance(extra, dict) else set())


@pytest.mark.parametrize(
    ("depth", "taken"),
    [(0, 0), (3, 3), (3.0, 3), ("4", 4), (10**30, 2**31 - 1), (1e300, 2**31 - 1), (float("inf"), 2**31 - 1)],
)
def test_depths(depth: Any, taken: int) -> None:
    assert read_wishes({"adaptspec_max_depth": depth}) == (SpeculationParams(max_depth=taken), {})


@pytest.mark.parametrize("depth", [-1, 1.5, "x", "", "9" * 5000, None, True, [3], {}, float("nan"), float("-inf")])
def test_what_is_no_depth_is_named_and_the_rest_holds(depth: Any) -> None:
    extra = {"adaptspec_max_depth": depth, "adaptspec_task": "code", "other": 1}
    assert read_wishes(extra) == (SpeculationParams(task="code"), {"adaptspec_max_depth": "max_depth"})


def test_all_wishes() -> None:
    extra = {"adaptspec_policy": "ucb", "adaptspec_task": "code", "adaptspec_max_depth": 2, "mine": [1]}
    assert read_wishes(extra) == (SpeculationParams(policy="ucb", task="code", max_depth=2), {})


def test_misspelt_wishes_are_named() -> None:
    assert read_wishes({"adaptspec_maxdepth": 0}) == (SpeculationParams(), {"adaptspec_maxdepth": "unknown"})
    assert read_wishes({"adaptspec_task": " space "}) == (SpeculationParams(), {"adaptspec_task": "task"})

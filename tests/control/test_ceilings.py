"""Ceilings: what may be drafted at all, and nothing copied where nothing binds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from adaptspec.control.algorithms.algorithm import Choice
from adaptspec.control.ceilings import Bounds, Ceilings, Ranges, TaskTiers, depth_at
from tests.control.helpers import signals


def test_nothing_binds_nothing_is_copied() -> None:
    """The common round must not pay for ceilings that are far away."""
    seen = signals([7, 2])
    ceilings = Ceilings(Bounds.model_validate({"max-batch-size": 8, "min-free-memory": 0.1}), {}, 3)
    assert ceilings.limits(seen) is seen.limits


def test_batch_size_bounds_all_rows() -> None:
    """Rows under other policies count: they share the round."""
    bounds = Bounds.model_validate({"max-batch-size": 4, "depth-by-batch-size": [[1, 2, 5], [3, 8, 1]]})
    ceilings = Ceilings(bounds, {}, 3)
    assert ceilings.limits(signals([7, 2])).tolist() == [5, 2]
    assert ceilings.limits(signals([7, 2], beside=1)).tolist() == [1, 1]
    assert ceilings.limits(signals([7, 2], beside=3)).tolist() == [0, 0]


def test_short_memory_stops_drafting() -> None:
    """What is left of the cache is for requests, not for guesses."""
    ceilings = Ceilings(Bounds.model_validate({"min-free-memory": 0.1}), {}, 3)
    assert ceilings.limits(replace(signals([7, 2]), free_memory=0.1)).tolist() == [7, 2]
    assert ceilings.limits(replace(signals([7, 2]), free_memory=0.05)).tolist() == [0, 0]


def test_tasks_have_ceilings_of_their_own() -> None:
    """And the tighter bound counts."""
    ceilings = Ceilings(Bounds.model_validate({"depth-by-batch-size": [[1, 8, 4]]}), {1: 2, 2: 0}, 3)
    assert ceilings.limits(signals([7, 7, 7], tasks=[0, 1, 2])).tolist() == [4, 2, 0]


def test_bounds_of_a_task_leave_the_others_as_usual() -> None:
    usual = Bounds.model_validate({"max-batch-size": 4, "min-free-memory": 0.2})
    own = Bounds.model_validate({"min-free-memory": 0.0})
    assert own.over(usual) == Bounds.model_validate({"max-batch-size": 4, "min-free-memory": 0.0})
    assert Bounds().over(usual) == usual


def test_every_batch_size_has_the_depth_of_its_range() -> None:
    """Gaps and what lies beyond the last range go with the range before."""
    ranges = TypeAdapter(Ranges).validate_python([[9, 16, 1], [1, 4, 5]])
    assert [depth_at(ranges, size) for size in (0, 1, 4, 5, 8, 9, 16, 17, 9999)] == [5, 5, 5, 5, 5, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("ranges", "said"),
    [
        ([], "at least 1 item"),
        ([[2, 4, 1]], "must start at batch size 1"),
        ([[1, 4]], "is no"),
        ([[1, 4, -1]], "is no"),
        ([[1, 4, 65]], "is no"),
        ([[4, 1, 1]], "is no"),
        ([[1, 10**9, 1]], "is no"),
        ([[1, 4, 1], [4, 8, 0]], "overlaps"),
    ],
)
def test_what_is_no_schedule_is_refused(ranges: list[list[int]], said: str) -> None:
    """With the range at fault."""
    with pytest.raises(ValidationError, match=said):
        TypeAdapter(Ranges).validate_python(ranges)


@settings(max_examples=60, deadline=None)
@given(
    tiers=st.sets(st.integers(0, 9), min_size=1),
    rows=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 2)), min_size=1, max_size=6),
)
def test_the_deepest_allowed_depth_that_is_not_deeper(tiers: set[int], rows: list[tuple[int, int]]) -> None:
    """Task 1 has tiers, which may go beyond what the policy does; the others run as chosen."""
    depths, tasks = np.array([d for d, _ in rows]), np.array([t for _, t in rows])
    lowered = TaskTiers({1: sorted(tiers)}, 3, 7).lower(Choice(depths, np.zeros_like(depths)), tasks).depths
    expected = [max(t for t in {0, *tiers} if t <= d) if task == 1 else d for d, task in rows]
    assert lowered.tolist() == expected

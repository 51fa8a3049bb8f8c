"""Limits of depths: by batch size, and by task."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from adaptspec.control.limits import Ranges, TaskLimits, depth_at


def test_every_batch_size_has_the_depth_of_its_range() -> None:
    """Gaps and what lies beyond the last range go with the range before."""
    ranges = TypeAdapter(Ranges).validate_python([[9, 16, 1], [1, 4, 5]])
    assert [depth_at(ranges, size) for size in (0, 1, 4, 5, 8, 9, 16, 17, 9999)] == [5, 5, 5, 5, 5, 1, 1, 1, 1]


@settings(max_examples=60, deadline=None)
@given(
    tiers=st.sets(st.integers(0, 9), min_size=1),
    rows=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 2)), min_size=1, max_size=6),
)
def test_the_deepest_allowed_depth_that_is_not_deeper(tiers: set[int], rows: list[tuple[int, int]]) -> None:
    """Task 1 has tiers, which may go beyond what the policy does; the others run as chosen."""
    depths, tasks = np.array([d for d, _ in rows]), np.array([t for _, t in rows])
    lowered = TaskLimits({1: sorted(tiers)}, 3, 7).lower(depths, tasks)
    expected = [max(t for t in {0, *tiers} if t <= d) if task == 1 else d for d, task in rows]
    assert lowered.tolist() == expected

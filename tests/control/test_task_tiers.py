"""Tiers of tasks: never deeper than what was chosen, never a depth that is not allowed."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.control.task_tiers import TaskTiers


@settings(max_examples=60, deadline=None)
@given(
    tiers=st.sets(st.integers(0, 9), min_size=1),
    rows=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 2)), min_size=1, max_size=6),
)
def test_the_deepest_allowed_depth_that_is_not_deeper(tiers: set[int], rows: list[tuple[int, int]]) -> None:
    """Task 1 has tiers, which may go beyond what the policy does; the others run as chosen."""
    depths, tasks = np.array([d for d, _ in rows]), np.array([t for _, t in rows])
    lowered = TaskTiers({1: sorted(tiers)}, 3, 7).lower(depths, tasks)
    expected = [max(t for t in {0, *tiers} if t <= d) if task == 1 else d for d, task in rows]
    assert lowered.tolist() == expected

"""Depth per batch size: ranges as vLLM reads them."""

from __future__ import annotations

import pytest

from adaptspec.control.batch_schedule import BatchSchedule
from adaptspec.errors import ConfigError


def test_every_batch_size_has_the_depth_of_its_range() -> None:
    """Gaps and what lies beyond the last range go with the range before."""
    schedule = BatchSchedule([[9, 16, 1], [1, 4, 5]])
    assert [schedule.depth(size) for size in (0, 1, 4, 5, 8, 9, 16, 17, 9999)] == [5, 5, 5, 5, 5, 1, 1, 1, 1]
    assert schedule.max_depth == 5


@pytest.mark.parametrize(
    ("ranges", "said"),
    [
        ([], "empty"),
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
    with pytest.raises(ConfigError, match=said):
        BatchSchedule(ranges)

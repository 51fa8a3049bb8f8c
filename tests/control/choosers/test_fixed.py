"""A fixed depth, and vLLM's schedule format."""

from __future__ import annotations

import pytest

from adaptspec.control.choosers.fixed import BatchTable, Static
from adaptspec.errors import ConfigError
from adaptspec.types import Reason
from tests.control.helpers import record, signals


def test_always_the_same_within_limits() -> None:
    chooser = Static(3)
    chooser.start(0)
    choice = chooser.choose(signals([7, 2, 0]))
    assert choice.depths.tolist() == [3, 2, 0]
    assert set(choice.reasons.tolist()) == {int(Reason.FIXED)}
    chooser.learn(record([3], [0]))
    chooser.finish(0)
    assert chooser.choose(signals([7])).depths.tolist() == [3]


@pytest.mark.parametrize(("size", "depth"), [(1, 5), (2, 5), (3, 5), (4, 3), (6, 3), (7, 0), (20, 0)])
def test_ranges_gaps_and_beyond(size: int, depth: int) -> None:
    """3 lies in a gap and takes the depth before it; 20 lies beyond the last range."""
    table = BatchTable([[4, 6, 3], [1, 2, 5], [7, 12, 0]])
    assert table.choose(signals([7] * size)).depths.tolist() == [depth] * size


def test_rows_of_other_policies_count() -> None:
    assert BatchTable([[1, 2, 5], [3, 9, 1]]).choose(signals([7], beside=3)).depths.tolist() == [1]


@pytest.mark.parametrize("schedule", [[], [[2, 3, 1]], [[1, 4, 1], [4, 5, 0]], [[1, 0, 2]], [[1, 2]], [[1, 2, -1]]])
def test_what_is_no_schedule_is_refused(schedule: list[list[int]]) -> None:
    with pytest.raises(ConfigError):
        BatchTable(schedule)

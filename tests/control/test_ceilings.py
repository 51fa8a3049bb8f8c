"""Ceilings: what may be drafted at all, and nothing copied where nothing binds."""

from __future__ import annotations

from dataclasses import replace

from adaptspec.control.batch_schedule import BatchSchedule
from adaptspec.control.ceilings import Bounds, Ceilings
from tests.control.helpers import signals


def test_nothing_binds_nothing_is_copied() -> None:
    """The common round must not pay for ceilings that are far away."""
    seen = signals([7, 2])
    ceilings = Ceilings(Bounds(max_batch_size=8, min_free_memory=0.1), {}, 3)
    assert ceilings.limits(seen) is seen.limits


def test_batch_size_bounds_all_rows() -> None:
    """Rows under other policies count: they share the round."""
    bounds = Bounds(max_batch_size=4, by_batch_size=BatchSchedule([[1, 2, 5], [3, 8, 1]]))
    ceilings = Ceilings(bounds, {}, 3)
    assert ceilings.limits(signals([7, 2])).tolist() == [5, 2]
    assert ceilings.limits(signals([7, 2], beside=1)).tolist() == [1, 1]
    assert ceilings.limits(signals([7, 2], beside=3)).tolist() == [0, 0]


def test_short_memory_stops_drafting() -> None:
    """What is left of the cache is for requests, not for guesses."""
    ceilings = Ceilings(Bounds(min_free_memory=0.1), {}, 3)
    assert ceilings.limits(replace(signals([7, 2]), free_memory=0.1)).tolist() == [7, 2]
    assert ceilings.limits(replace(signals([7, 2]), free_memory=0.05)).tolist() == [0, 0]


def test_tasks_have_ceilings_of_their_own() -> None:
    """And the tighter bound counts."""
    ceilings = Ceilings(Bounds(by_batch_size=BatchSchedule([[1, 8, 4]])), {1: 2, 2: 0}, 3)
    assert ceilings.limits(signals([7, 7, 7], tasks=[0, 1, 2])).tolist() == [4, 2, 0]
    assert not Bounds().any
    assert Bounds(max_batch_size=1).any

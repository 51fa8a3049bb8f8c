"""How often drafts go on, for cost and for gain."""

from __future__ import annotations

import numpy as np
import pytest

from adaptspec.control.continuation import Continuation


def test_continuation_tells_cost_from_gain() -> None:
    """A stop rule that cuts only drafts that were to be rejected costs less and loses nothing."""
    continuation = Continuation(2)
    for _ in range(200):
        continuation.observe(np.array([2, 2]), np.array([2, 1]), np.array([2, 0]))
    kept, drafted = continuation.rates()
    assert kept[1] > 0.95
    assert drafted[1] == pytest.approx(0.5, abs=0.05)


def test_rows_without_a_depth_say_nothing_of_how_far_drafts_go_on() -> None:
    """Whatever they drafted."""
    alone, beside = Continuation(3), Continuation(3)
    alone.observe(np.array([3]), np.array([1]), np.array([1]))
    beside.observe(np.array([3, 0, 0]), np.array([1, 2, 3]), np.array([1, 2, 0]))
    assert np.array_equal(alone.learned(), beside.learned())

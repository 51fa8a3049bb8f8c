"""Contexts: whose record counts, and which batch sizes are alike."""

from __future__ import annotations

import numpy as np
import pytest

from adaptspec.control.bandits.contexts import Contexts, Scope


@pytest.mark.parametrize(
    ("scope", "same"), [("request", False), ("task", False), ("batch-bucket", True), ("global", True)]
)
def test_rows_share_a_context_or_not(scope: Scope, same: bool) -> None:
    contexts = Contexts(scope, 4, 3)
    first, second = contexts.start(0, 1), contexts.start(1, 2)
    assert (first == second) is same
    assert contexts.of(np.array([0, 1])).tolist() == [first, second]
    assert contexts.path(np.array([first]), np.array([1]))[0].tolist() == [0]


def test_a_rows_next_request_has_another_context() -> None:
    """Notes of the last request may still wait to be learned."""
    contexts = Contexts("request", 4, 3)
    first, second, third = (contexts.start(2, task) for task in (1, 2, 0))
    assert first != second
    assert third == first
    assert contexts.path(np.array([second]), np.array([2])).tolist() == [[0], [1 + 2], [1 + 3 + second]]
    assert contexts.task_of(np.array([third])).tolist() == [0]


def test_batch_sizes_are_alike_between_powers_of_two() -> None:
    contexts = Contexts("task", 64, 1)
    assert [contexts.bucket(size) for size in (1, 2, 3, 4, 5, 8, 9, 64)] == [0, 1, 2, 2, 3, 3, 4, 6]
    assert contexts.bucket(1000) == contexts.buckets - 1
    assert Contexts("global", 64, 1).bucket(64) == 0

"""Features: the numbers a contextual bandit sees, per row or as a mean over the rows of a context."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from adaptspec.control.bandits.features import OTHERS, Features
from tests.control.helpers import record, signals


def test_each_row_is_described() -> None:
    features = Features(rows=4, tasks=3)
    features.learn(record([2, 0], [1, 0], confidence=1.0))
    seen = replace(signals([7, 7]), position=np.array([0, 255]))
    got = features.of(seen, np.array([1, 2]), np.array([0, 1]), np.array([0, 1]))
    assert got.shape == (2, 3 + OTHERS)
    assert got[:, :3].tolist() == [[0, 1, 0], [0, 0, 1]]
    assert got[0, 4] == 0.25
    assert got[1, 4] == 0.0
    assert got[:, 6].tolist() == [0.0, 1.0]
    assert (np.abs(got) <= 1.5).all()


def test_a_context_of_many_rows_is_their_mean_and_a_new_request_starts_blank() -> None:
    features = Features(rows=4, tasks=2)
    features.learn(record([1, 1], [1, 1], confidence=2.0))
    got = features.of(signals([7, 7]), np.array([0, 1]), np.zeros(2, dtype=np.int64), np.array([0]))
    assert got[0, :2].tolist() == [0.5, 0.5]
    features.start(0)
    again = features.of(signals([7, 7]), np.array([0, 1]), np.zeros(2, dtype=np.int64), np.array([0]))
    assert again[0, 3] == pytest.approx(got[0, 3] / 2)


def test_only_the_latest_draft_of_the_same_request_counts() -> None:
    features = Features(rows=2, tasks=1)
    both = (np.zeros(2, dtype=np.int64), np.arange(2), np.arange(2))
    features.learn(record([1, 1], [1, 1], confidence=1.0))
    features.learn(record([0, 0], [0, 0]))
    features.learn(record([1, 0], [1, 0], confidence=2.0))
    features.start(1)
    assert features.of(signals([7, 7]), *both)[:, 2].tolist() == [0.5, 0.0]
    features.learn(record([0, 3], [0, 3], confidence=1.0))
    assert features.of(signals([7, 7]), *both)[:, 2].tolist() == [0.5, 0.25]

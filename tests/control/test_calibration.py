"""Confidence is corrected by what was accepted, per row, task and bin."""

from __future__ import annotations

import numpy as np
import pytest

from adaptspec.control.calibration import Calibration


def test_calibration_starts_somewhat_surer_than_the_confidence_and_learns_overconfidence() -> None:
    calibration = Calibration()
    index = int(calibration.index(np.array([0.95]))[0])
    assert calibration.table()[index] == pytest.approx(0.35 + 0.65 * 0.95)
    assert not calibration.informed
    for _ in range(100):
        calibration.observe(np.array([[0.95]]), np.array([1]), np.array([0]))
    assert calibration.table()[index] < 0.05
    assert calibration.informed


def test_calibration_ignores_what_verification_never_reached() -> None:
    """After a rejection at the first token the second's agreement is unknown."""
    calibration = Calibration()
    calibration.observe(np.array([[0.25, 0.95]]), np.array([2]), np.array([0]))
    assert calibration.table()[9] == pytest.approx(0.35 + 0.65 * 0.95)
    assert calibration.table()[2] < 0.5


def test_rows_that_fare_better_or_worse_than_their_confidence_are_told_apart() -> None:
    """And a new request in the row is like any other of its task again."""
    calibration, rows, tasks = Calibration(2), np.array([0, 1]), np.array([0, 0])
    for _ in range(30):
        calibration.observe(np.full((2, 1), 0.5), np.array([1, 1]), np.array([1, 0]), rows, tasks)
    better, worse = calibration.factors(rows, tasks)
    assert better < 0.6
    assert worse > 1.2
    calibration.start(1)
    assert 0.9 < calibration.factors(rows, tasks)[1] < 1.1


def test_a_request_begins_as_sure_as_its_task() -> None:
    """Answers of few tokens have no time to tell what their draft's confidence is worth: their task knows."""
    calibration, rows = Calibration(2, tasks=3), np.array([0, 1])
    for _ in range(100):
        calibration.observe(np.full((1, 1), 0.25), np.array([1]), np.array([1]), rows[:1], rows[1:])
    calibration.start(0)
    fresh = calibration.factors(rows, np.array([2, 1]))
    assert fresh[0] == 1.0
    assert fresh[1] < 0.7
    again = Calibration(2, tasks=3)
    again.restore(calibration.learned())
    assert again.factors(rows, np.array([2, 1])).tolist() == fresh.tolist()
    assert again.table().tolist() == calibration.table().tolist()

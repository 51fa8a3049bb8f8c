"""Counts of acceptance: what a round teaches, what it does not, and how levels lean on each other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptspec.arrays import FloatArray, IntArray
from adaptspec.control.acceptance import Acceptance, AcceptanceSettings, Calibration, RecordBuffer
from tests.control.helpers import record

ROW = np.array([0])


def observe(signals: Acceptance, drafted: int, accepted: int, times: int = 1, row: int = 0) -> None:
    for _ in range(times):
        signals.observe(np.array([row]), np.zeros(1, np.int64), np.array([drafted]), np.array([accepted]))


def test_a_round_says_nothing_of_positions_it_did_not_reach() -> None:
    """Drafted 4, kept 1: position 2 rejected, positions 3 and 4 unknown."""
    signals = Acceptance(1, 1, 4)
    observe(signals, 4, 1)
    assert signals.counts()[0, 0].tolist() == [1.0, 1.0, 0.0, 0.0]


def test_shallow_rounds_raise_the_estimate_of_deep_positions() -> None:
    """A cautious prior for positions never reached would keep every algorithm shallow for ever."""
    signals = Acceptance(1, 1, 7)
    observe(signals, 1, 1, 60)
    assert signals.acceptance(ROW, ROW)[0, 6] > 0.85


def test_rows_differ_and_new_requests_inherit_from_all_traffic() -> None:
    signals = Acceptance(3, 1, 3)
    for _ in range(60):
        signals.observe(np.array([0, 1]), np.zeros(2, np.int64), np.array([1, 1]), np.array([1, 0]))
    good, bad, new = signals.acceptance(np.array([0, 1, 2]), np.zeros(3, np.int64))[:, 0]
    assert good > 0.75
    assert bad < 0.25
    assert bad < new < good


def test_tasks_are_estimated_separately() -> None:
    signals = Acceptance(4, 3, 2)
    tasks = np.array([1, 2])
    for _ in range(80):
        signals.observe(np.array([0, 1]), tasks, np.array([1, 1]), np.array([1, 0]))
    fresh = signals.acceptance(np.array([2, 3]), tasks)[:, 0]
    assert fresh[0] > fresh[1] + 0.4


def test_a_row_that_fails_at_once_is_not_trusted_deeper() -> None:
    """Positions that other rows reach are worth nothing to a row that fails at the first one."""
    signals = Acceptance(2, 1, 4)
    for _ in range(60):
        signals.observe(np.array([0, 1]), np.zeros(2, np.int64), np.array([4, 1]), np.array([4, 0]))
    survival = signals.acceptance(np.array([1]), ROW)[0].cumprod()
    assert survival[1:].sum() < 0.5


@given(rounds=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=12))
def test_several_rounds_of_a_row_at_once_equal_them_one_by_one(rounds: list[tuple[int, int]]) -> None:
    """Without fading the two ways of learning are the same sum."""
    still = AcceptanceSettings(decay=1.0)
    drafted = np.array([d for d, _ in rounds])
    accepted = np.array([min(d, a) for d, a in rounds])
    one, lot = Acceptance(1, 1, 4, still), Acceptance(1, 1, 4, still)
    for d, a in zip(drafted, accepted, strict=True):
        one.observe(ROW, ROW, np.array([d]), np.array([a]))
    lot.observe(*np.zeros((2, len(rounds)), dtype=np.int64), drafted, accepted)
    assert lot.counts()[0, 0] == pytest.approx(one.counts()[0, 0])
    assert lot.acceptance(ROW, ROW) == pytest.approx(one.acceptance(ROW, ROW))


@given(
    rounds=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=40),
)
def test_estimates_are_probabilities(rounds: list[tuple[int, int]]) -> None:
    signals = Acceptance(1, 1, 5)
    for d, a in rounds:
        observe(signals, d, min(d, a))
    acceptance = signals.acceptance(ROW, ROW)
    assert ((acceptance > 0.0) & (acceptance < 1.0)).all()


def test_rounds_are_of_the_requests_that_ran_them() -> None:
    """A round that is learned once another request has the row counts for its task alone."""
    buffer = RecordBuffer(3)
    buffer.add(record([2, 2], [1, 1], tasks=[1, 1]))
    buffer.start(0)
    late = record([2, 2], [1, 1], tasks=[1, 1])
    buffer.add(replace(late, running=np.array([False, True])))
    buffer.add(record([2, 2], [1, 1], tasks=[2, 1]))
    lot = buffer.taken()
    assert lot is not None
    assert lot.rows.tolist() == [-1, 1, -1, 1, 0, 1]
    assert lot.tasks.tolist() == [1, 1, 1, 1, 2, 1]
    assert buffer.taken() is None
    known = Acceptance(2, 3, 3)
    known.observe(lot.rows[:1], lot.tasks[:1], np.array([1]), np.array([0]))
    usual = known.of_tasks(np.array([0, 0]))
    assert np.allclose(known.acceptance(np.array([0, 1]), np.array([0, 0])), usual)
    assert known.of_tasks(np.array([1]))[0, 0] < known.of_tasks(np.array([2]))[0, 0]


def by_bin(calibration: Calibration, rows: IntArray = ROW, tasks: IntArray = ROW) -> FloatArray:
    return calibration.acceptance(rows, tasks)


def test_calibration_starts_near_the_stated_confidence_and_learns() -> None:
    calibration = Calibration(1, 1)
    assert by_bin(calibration)[0, 9] == pytest.approx(0.95)
    assert not calibration.informed
    for _ in range(100):
        calibration.observe_confidence(np.array([[0.95]]), ROW, ROW, np.array([1]), np.array([0]))
    assert by_bin(calibration)[0, 9] < 0.05
    assert calibration.informed


def test_calibration_ignores_what_verification_never_reached() -> None:
    """Tokens after the first rejection are unknown, and drafts with a token of unknown confidence are left out."""
    calibration = Calibration(1, 1)
    calibration.observe_confidence(np.array([[0.25, 0.95]]), ROW, ROW, np.array([2]), np.array([0]))
    assert calibration.counts()[0, 0][[2, 9]].tolist() == [1.0, 0.0]
    calibration.observe_confidence(np.array([[np.nan, 0.95]]), ROW, ROW, np.array([2]), np.array([2]))
    assert calibration.counts()[0, 0][9] == 0.0


def test_a_request_starts_from_the_calibration_of_its_task() -> None:
    """Short answers end before their own confidences are calibrated."""
    calibration, rows, tasks = Calibration(2, 3), np.array([0, 1]), np.array([2, 1])
    for _ in range(100):
        calibration.observe_confidence(np.full((2, 1), 0.25), rows, tasks, np.array([1, 1]), np.array([0, 1]))
    for row in rows:
        calibration.start(row)
    fresh = by_bin(calibration, rows, tasks)
    assert fresh[1, 2] > fresh[0, 2] + 0.3
    again = Calibration(2, 3)
    again.counts()[...] = calibration.counts()
    assert np.array_equal(by_bin(again, rows, tasks), fresh)

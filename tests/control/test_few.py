"""What is counted one by one, where a round is shortest, comes to the same as what is counted all at once."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from adaptspec.control.calibration import Calibration
from adaptspec.control.continuation import Continuation
from adaptspec.control.signals import AcceptanceSignals
from adaptspec.types import IntArray

ROWS, TASKS, DEPTH = 4, 3, 5
Round = tuple[int, int, int, int]


@st.composite
def rounds(draw: st.DrawFn) -> list[Round]:
    """Of a row: depth allowed, tokens drafted, tokens accepted."""
    made = []
    for _ in range(draw(st.integers(1, 10))):
        depth = draw(st.integers(0, DEPTH))
        drafted = draw(st.integers(0, depth))
        made.append((draw(st.integers(0, ROWS - 1)), depth, drafted, draw(st.integers(0, drafted))))
    return made


def columns(made: list[Round]) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    rows, depths, drafted, accepted = np.array(made, dtype=np.int64).T
    return rows, depths, drafted, accepted


@given(st.lists(rounds(), min_size=1, max_size=4))
def test_acceptance(lots: list[list[Round]]) -> None:
    few, many = (AcceptanceSignals(ROWS, TASKS, DEPTH) for _ in range(2))
    for signals in (few, many):
        for row in range(ROWS):
            signals.start(row, row % TASKS)
    for made in lots:
        rows, _, drafted, accepted = columns(made)
        few.observe_few(rows.tolist(), drafted.tolist(), accepted.tolist())
        many.observe_many(rows, drafted, accepted)
    everyone = np.arange(ROWS)
    expected = many.acceptance(everyone)
    assert np.allclose(few.acceptance(everyone), expected, atol=1e-12)
    assert np.allclose([few.acceptance_of_one(row) for row in range(ROWS)], expected, atol=1e-12)
    assert np.allclose(few.learned(), many.learned(), atol=1e-12)
    assert np.allclose(few.rejections(everyone), many.rejections(everyone), atol=1e-12)


@given(st.lists(rounds(), min_size=1, max_size=4))
def test_how_long_drafts_go_on(lots: list[list[Round]]) -> None:
    few, many = Continuation(DEPTH), Continuation(DEPTH)
    for made in lots:
        _, *counted = columns(made)
        few.observe_few(*(part.tolist() for part in counted))
        many.observe_many(*counted)
    assert np.allclose(few.learned(), many.learned(), atol=1e-12)
    assert np.allclose(few.rates(), many.rates(), atol=1e-12)


@given(st.lists(rounds(), min_size=1, max_size=4), st.integers(0, 2**32 - 1))
def test_what_confidence_says(lots: list[list[Round]], seed: int) -> None:
    luck = np.random.default_rng(seed)
    few, many = Calibration(ROWS, TASKS), Calibration(ROWS, TASKS)
    for calibration in (few, many):
        for row in range(ROWS):
            calibration.start(row, row % TASKS)
    for made in lots:
        rows, _, drafted, accepted = columns(made)
        sure = luck.random((len(rows), DEPTH))
        sure[luck.random(sure.shape) < 0.2] = np.nan
        few.observe_few(sure.tolist(), drafted.tolist(), accepted.tolist(), rows.tolist())
        many.observe_many(sure, drafted, accepted, rows)
    everyone = np.arange(ROWS)
    assert np.allclose(few.learned(), many.learned(), atol=1e-12)
    assert np.allclose(few.factors(everyone), many.factors(everyone), atol=1e-12)
    assert np.allclose([few.factor_of_one(row) for row in range(ROWS)], many.factors(everyone), atol=1e-12)

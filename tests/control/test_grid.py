"""Interpolation is exact where it was measured, and one bad measurement moves nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptspec.control.grid import LearnedGrid
from adaptspec.errors import ConfigError

ROWS, COLUMNS = (1, 4, 16), (1, 2, 8)
SECONDS = ((1.0, 1.5, 3.0), (2.0, 3.0, 8.0), (4.0, 7.0, 25.0))


def test_measured_points_read_back() -> None:
    grid = LearnedGrid(ROWS, COLUMNS, SECONDS)
    assert [[grid.at(r, c) for c in COLUMNS] for r in ROWS] == [list(line) for line in SECONDS]


@given(row=st.floats(1, 30), column=st.floats(1, 20))
def test_across_equals_at_within_the_table(row: float, column: float) -> None:
    """Two ways to read one table must agree."""
    grid = LearnedGrid(ROWS, COLUMNS, SECONDS)
    column = min(column, 8.0)
    assert grid.across(row, np.array([column]))[0] == pytest.approx(grid.at(row, column))


def test_beyond_the_table_it_goes_on_straight() -> None:
    grid = LearnedGrid(ROWS, COLUMNS, SECONDS)
    assert grid.across(1, np.array([10.0]))[0] == pytest.approx(3.5)
    assert grid.at(1, 10) == pytest.approx(3.5)
    assert grid.at(28, 1) == pytest.approx(6.0)


def test_a_single_outlier_moves_a_settled_cell_little() -> None:
    grid = LearnedGrid((1,), (1,), ((1.0,),))
    for _ in range(50):
        grid.correct(1, 1, 1.0, 1.0)
    grid.correct(1, 1, 100.0, 1.0)
    assert grid.at(1, 1) < 1.02


def test_the_first_measurement_alone_is_not_believed() -> None:
    """The first round of a process is often slow."""
    grid = LearnedGrid((1,), (1,), ((1.0,),))
    grid.correct(1, 1, 30.0, 1.0)
    assert grid.at(1, 1) == 1.0


@given(true=st.floats(0.3, 3.0))
def test_it_converges_to_what_is_measured(true: float) -> None:
    grid = LearnedGrid((1,), (1,), ((1.0,),))
    for _ in range(300):
        grid.correct(1, 1, true, 1.0)
    assert grid.at(1, 1) == pytest.approx(true, rel=0.05)


def test_cells_never_seen_follow_but_the_first_column_does_not() -> None:
    grid = LearnedGrid((1,), (1, 2, 4), ((1.0, 1.0, 1.0),))
    for _ in range(50):
        grid.correct(1, 2, 2.0, 1.0)
    assert grid.at(1, 4) == pytest.approx(2.0, rel=0.1)
    assert grid.at(1, 1) == 1.0


@pytest.mark.parametrize(
    ("rows", "columns", "seconds"),
    [
        ((1, 1), (1,), ((1.0,), (1.0,))),
        ((1,), (1,), ((0.0,),)),
        ((1,), (1,), ((float("nan"),),)),
        ((1,), (1, 2), ((1.0,),)),
    ],
)
def test_broken_tables_are_refused(
    rows: tuple[int, ...], columns: tuple[int, ...], seconds: tuple[tuple[float, ...], ...]
) -> None:
    with pytest.raises(ConfigError, match="measure again"):
        LearnedGrid(rows, columns, seconds)


@given(
    row=st.floats(0.5, 12.0),
    columns=st.lists(st.floats(0.5, 40.0), min_size=1, max_size=12),
    seen=st.lists(st.tuples(st.sampled_from([1, 2, 8]), st.floats(1, 30), st.floats(1e-4, 1e-1)), max_size=12),
)
def test_columns_read_one_by_one_are_those_read_at_once(
    row: float, columns: list[float], seen: list[tuple[int, float, float]]
) -> None:
    grid = LearnedGrid([1, 2, 8], [1, 2, 4, 16], [[1e-3, 2e-3, 3e-3, 9e-3], [2e-3, 3e-3, 5e-3, 9e-3], [3e-3] * 4])
    for at, column, seconds in seen:
        grid.correct(at, column, seconds, 1.0)
    assert np.allclose(grid.along(row, sorted(columns)), grid.across(row, np.array(sorted(columns))), rtol=1e-9)

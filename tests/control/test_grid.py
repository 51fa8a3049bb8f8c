"""Interpolation is exact where it was measured, and one bad measurement moves nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptspec.control.grid import LearnedGrid, Quantity, look
from adaptspec.errors import ConfigError

ROWS, COLUMNS = (1, 4, 16), (1, 2, 8)


def looked(grid: LearnedGrid, row: float, column: float, seconds: float, *, times: int = 1, since: int = 0) -> None:
    """So many rounds took so long at a point."""
    for now in range(since, since + times):
        look(grid.parts(row, column), Quantity(1.0, 0.0), seconds, now)
    grid.settle(since + times)


def test_stalls_do_not_move_it() -> None:
    """One round in fifty takes ten times as long."""
    grid = LearnedGrid((1,), (1,), ((1.0,),))
    for start in range(0, 1000, 50):
        looked(grid, 1, 1, 1.0, times=49, since=start)
        looked(grid, 1, 1, 10.0, times=1, since=start + 49)
    assert grid.at(1, 1) == pytest.approx(1.0, rel=0.05)


def test_a_point_that_was_measured_wrong_is_mended_by_its_neighbours() -> None:
    """Rounds have shown what one token takes, and four: two take something in between, whatever was believed."""
    grid = LearnedGrid((1,), (1, 2, 4), ((1.0, 5.0, 1.4),))
    looked(grid, 1, 1, 1.0, times=40)
    looked(grid, 1, 4, 1.4, times=40, since=40)
    assert 1.0 <= grid.at(1, 2) <= 1.5


def test_more_tokens_are_never_cheaper_and_hardly_dearer_than_as_many_passes() -> None:
    """Tables of other hours said that one token takes 5.2 ms and two 2.2, or 2.3 and 7.7."""
    for first, second in ((5.2, 2.2), (2.3, 7.7)):
        grid = LearnedGrid((1,), (1, 2), ((first, second),))
        looked(grid, 1, 1, 1.3, times=40)
        assert 1.0 <= grid.at(1, 2) / grid.at(1, 1) <= 2.0**1.25 + 1e-9


@given(seed=st.integers(0, 2**32 - 1))
def test_whatever_is_seen_prices_rise_with_work(seed: int) -> None:
    luck = np.random.default_rng(seed)
    grid = LearnedGrid(ROWS, COLUMNS, np.exp(luck.normal(0.0, 1.0, (3, 3))).tolist())
    for now in range(20):
        point = float(luck.uniform(1, 20)), float(luck.uniform(1, 10))
        looked(grid, *point, float(np.exp(luck.normal(0.0, 2.0))), since=now)
    tokens = np.linspace(1, 8, 40)
    read = np.array([grid.across(row, tokens) for row in (1, 2, 4, 9, 16)])
    assert (read > 0.0).all()
    assert (np.diff(read, axis=0) >= -1e-9).all()
    assert (np.diff(read, axis=1) >= -1e-9).all()
    optimistic = np.array([grid.across(row, tokens, optimistic=True) for row in (1, 2, 4, 9, 16)])
    assert (optimistic <= read + 1e-9).all()


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

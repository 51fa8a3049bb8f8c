"""Rows of requests: nobody gets the row of another who ran in the same lot."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.telemetry.lots import Lot, RequestRows, together
from tests.control.helpers import record


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 3), max_size=700))
def test_rows_are_given_once_in_a_lot(leavers: list[int]) -> None:
    """Whoever comes and goes, and however many do."""
    rows, running, given = RequestRows(4), [], set()
    for number, leaver in enumerate(leavers):
        if rows.full:
            rows.renew()
            given = {rows.of((name,)).item() for name in running}
        if len(running) == 4:
            rows.leave(running.pop(leaver))
        row = rows.enter(str(number))
        assert row not in given
        given.add(row)
        running.append(str(number))
    assert len({rows.of((name,)).item() for name in running}) == len(running)


def test_requests_whose_end_was_missed_do_not_use_up_the_rows() -> None:
    """A queue that overflows loses ends; those that nobody announced share a row."""
    rows = RequestRows(1)
    for number in range(2000):
        assert rows.enter(str(number)) < rows.size - 1
    assert rows.of(("nobody",)).item() == rows.size - 1


def test_rounds_together_are_their_rows_one_after_the_other() -> None:
    """Also where only some were scored, or drafted."""
    lot, rows = Lot(), RequestRows(3)
    for name in "012":
        rows.enter(name)
    for one in (record([2, 0], [1, 0]), record([0], [0]), record([3, 1, 0], [3, 0, 0])):
        lot.add(one, rows)
    whole = together(lot.decoding, lot.rows)
    assert whole.drafted.tolist() == [2, 0, 0, 3, 1, 0]
    assert whole.rows.tolist() == [rows.of((name,)).item() for name in "010012"]
    assert np.isnan(whole.confidence[:, 0]).tolist() == [False, True, True, False, False, True]
    assert whole.shadow is None

"""Notes of rounds: what counts as kept, and whose it is once the request has ended."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from adaptspec.control.choosers.notes import Notes
from tests.control.helpers import record


def test_tokens_behind_the_end_of_a_request_are_not_kept() -> None:
    """Alone or in a batch: three were accepted, the second ended the text."""
    for rows in (1, 2):
        notes = Notes(7)
        made = replace(record([4] * rows, [3] * rows), emitted=np.full(rows, 2))
        if rows == 1:
            notes.add(made)
        else:
            notes.add_part(made, slice(0, rows))
        assert notes.rounds()[3].tolist() == [2] * rows


@pytest.mark.parametrize("rows", [1, 2])
def test_a_round_shared_with_deeper_drafts_is_noted(rows: int) -> None:
    """What other policies' rows drafted makes a record wider than this chooser's depth."""
    notes = Notes(3)
    made = record([2] * rows + [9], [1] * rows + [9]).take(np.arange(rows))
    wide = replace(made, confidence=np.full((rows, 9), 0.5))
    for told in (made, wide):
        notes.clear()
        if rows == 1:
            notes.add(told)
        else:
            notes.add_part(told, slice(0, rows))
        assert notes.rounds()[2].tolist() == [2] * rows


def test_rounds_of_a_request_that_ended_go_under_another_name() -> None:
    notes = Notes(7)
    notes.add(record([2], [1]))
    notes.rename(0, 9)
    notes.add(record([3], [1]))
    assert notes.rounds()[0].tolist() == [9, 0]

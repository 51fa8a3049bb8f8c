"""Notes of rounds: what counts as kept, and whose it is once the request has ended."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from adaptspec.control.choosers.notes import Notes, RowRounds
from tests.control.helpers import record


def taken(notes: Notes) -> RowRounds:
    rounds = notes.take()
    assert rounds is not None
    return rounds


@pytest.mark.parametrize("rows", [1, 2])
def test_tokens_behind_the_end_of_a_request_are_not_kept(rows: int) -> None:
    """Alone or in a batch: three were accepted, the second ended the text. Plain decoding would have had the first."""
    notes = Notes(7)
    notes.add(replace(record([4] * rows, [3] * rows), emitted=np.full(rows, 2)))
    notes.add(replace(record([4] * rows, [3] * rows), emitted=np.full(rows, 1)))
    notes.add(record([4] * rows, [3] * rows))
    assert taken(notes).kept.tolist() == [1] * rows + [0] * rows + [3] * rows


@pytest.mark.parametrize("rows", [1, 2])
def test_a_round_shared_with_deeper_drafts_is_noted(rows: int) -> None:
    """What other policies' rows drafted makes a record wider than this chooser's depth."""
    notes = Notes(3)
    made = record([2] * rows + [9], [1] * rows + [9]).take(np.arange(rows))
    wide = replace(made, confidence=np.full((rows, 9), 0.5))
    for told in (made, wide):
        notes.add(told)
        rounds = taken(notes)
        assert rounds.drafted.tolist() == [2] * rows
        assert rounds.confidence.shape == (rows, 3)


def test_rounds_of_a_request_that_ended_go_under_another_name() -> None:
    notes = Notes(7)
    notes.add(record([2], [1]))
    notes.rename(0, 9)
    notes.add(record([3], [1]))
    assert taken(notes).rows.tolist() == [9, 0]


def test_a_request_that_came_after_another_that_ended_keeps_its_own_rounds() -> None:
    """Two requests end in row 0, one after the other: each one's rounds go under the name of its own task."""
    notes = Notes(7)
    notes.add(record([2, 1], [1, 0]))
    notes.rename(0, 8)
    notes.add(record([3, 1], [1, 0]))
    notes.rename(0, 9)
    notes.add(record([4, 1], [1, 0]))
    assert taken(notes).rows.tolist() == [8, 1, 9, 1, 0, 1]


def test_rows_that_ran_under_another_drafter_drafted_nothing_here() -> None:
    notes = Notes(7)
    notes.add(record([2, 3], [1, 3]), np.array([True, False]))
    notes.add(record([4], [2]))
    rounds = taken(notes)
    assert rounds.depths.tolist() == [2, 0, 4]
    assert rounds.drafted.tolist() == [2, 0, 4]
    assert rounds.kept.tolist() == [1, 0, 2]


def test_a_round_in_which_rows_only_caught_up_says_nothing_of_how_far_drafts_go_on() -> None:
    """Few drafted beside them, and were stopped by what tokens cost then. Where all drafted, some were stopped. Lookups

    that found nothing are no rows that caught up.
    """
    notes = Notes(7)
    asked = replace(record([0, 2], [0, 1]), depths=np.array([3, 3]))
    notes.add(replace(asked, caught_up=40))
    notes.add(asked)
    notes.add(replace(record([1, 2], [0, 1]), depths=np.array([3, 3]), caught_up=40))
    assert taken(notes).depths.tolist() == [0, 0, 3, 3, 3, 3]
    notes.add(replace(asked, caught_up=40), np.array([False, True]))
    assert taken(notes).depths.tolist() == [0, 3]


def test_notes_are_forgotten_once_taken_and_bounded_before() -> None:
    """A note holds on to its record, so there are not more than so many, however few rows they have."""
    notes = Notes(7, room=6)
    assert notes.take() is None
    for rows, full in (([2] * 4, False), ([1] * 2, True)):
        notes.add(record(rows, [0] * len(rows)))
        assert notes.full is full
    assert len(taken(notes).rows) == 6
    assert not notes.full
    assert notes.take() is None
    alone = Notes(7)
    for _ in range(256):
        assert not alone.full
        alone.add(record([1], [0]))
    assert alone.full

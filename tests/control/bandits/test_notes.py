"""Notes: row-rounds come back as they were taken, one at a time or many."""

from __future__ import annotations

import numpy as np

from adaptspec.control.bandits.notes import Note, Notes, Played
from adaptspec.types import RoundRecord
from tests.control.helpers import record


def note(made: RoundRecord, size: int, *, alone: bool = True) -> Note:
    columns = [np.arange(len(made.rows)) + 10 * k for k in range(5)]
    return Note(Played(*columns[:3], 0), *columns[3:], made, size, alone)


def test_rounds_of_one_row_and_of_many_are_kept_apart() -> None:
    notes = Notes()
    notes.add(note(record([3], [2]), 4, alone=False))
    notes.add(note(record([1, 0, 7], [1, 0, 5]), 3))
    rounds = notes.rounds()
    assert rounds.number.tolist() == [0, 1, 1, 1]
    assert rounds.contexts.tolist() == [0, 0, 1, 2]
    assert rounds.lag.tolist() == [40, 40, 41, 42]
    assert rounds.drafted.tolist() == [3, 1, 0, 7]
    assert rounds.emitted.tolist() == [3, 2, 1, 6]
    assert rounds.size.tolist() == [4, 3]
    assert rounds.alone.tolist() == [0, 1]
    assert rounds.context.tolist() == [100.0, 300.0]


def test_a_batch_larger_than_the_room_fits_after_clearing() -> None:
    notes = Notes()
    assert notes.has_room(5000)
    notes.add(note(record([1] * 5000, [1] * 5000), 5000))
    assert notes.count == 5000
    assert not notes.has_room(1)
    notes.clear()
    assert notes.has_room(5000)


def test_notes_know_whom_they_tell_of_and_hold_few_records() -> None:
    notes = Notes()
    for _ in range(256):
        assert notes.has_room(1)
        notes.add(note(record([1, 1], [1, 0]), 2))
    assert not notes.has_room(1)
    assert notes.tell_of(1)
    assert not notes.tell_of(2)
    notes.clear()
    assert not notes.tell_of(1)

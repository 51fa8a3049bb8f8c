"""Notes: row-rounds come back as they were taken, one at a time or many."""

from __future__ import annotations

import numpy as np

from adaptspec.control.bandits.notes import Notes, Played
from tests.control.helpers import record


def played(rows: int) -> Played:
    columns = [np.arange(rows) + 10 * k for k in range(5)]
    return Played(*columns)


def test_rounds_of_one_row_and_of_many_are_kept_apart() -> None:
    notes = Notes()
    notes.add(played(1), record([3], [2]), 4, alone=False)
    notes.add(played(3), record([1, 0, 7], [1, 0, 5]), 3, alone=True)
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
    assert not notes.has_room(5000)
    notes.add(played(5000), record([1] * 5000, [1] * 5000), 5000, alone=True)
    assert notes.count == 5000
    notes.clear()
    assert notes.has_room(5000)

"""Streams: who comes when, and how many at once."""

from __future__ import annotations

import pytest

from adaptspec.errors import TapeError
from adaptspec.simulation.scenarios import Schedule, in_phases, in_turn, stream
from tests.simulation.tapes import made_tape


def test_schedules_are_read_as_they_are_written() -> None:
    assert str(Schedule.parse("16")) == "16"
    assert Schedule.parse("1-16-1").stages == (1, 16, 1)
    assert Schedule.parse("4-4").fixed == 4
    assert Schedule.parse("1-16-1").fixed is None


@pytest.mark.parametrize("text", ["", "many", "1-", "0", "1-0-1", "-4"])
def test_schedules_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(TapeError):
        Schedule.parse(text)


def test_stages_are_equal_parts_of_the_stream() -> None:
    made = stream(made_tape(count=4), Schedule((1, 16, 1)), least=30)
    sizes = [made.rows_at(started) for started in range(len(made.order) + 1)]
    third = len(made.order) // 3
    assert sizes[0] == sizes[-1] == 1
    assert sizes[third + 1] == 16
    assert abs(sizes.count(16) - third) <= 1


def test_orders_mix_tasks_or_part_them() -> None:
    tape = made_tape(count=3)
    turns = [tape.tasks[request] for request in in_turn(tape)]
    phases = [tape.tasks[request] for request in in_phases(tape)]
    assert turns[:4] == ["code", "json", "rag", "code"]
    assert phases[:4] == ["code", "code", "code", "json"]
    assert sorted(turns) == sorted(phases) == sorted(tape.tasks)


def test_short_tapes_come_over_and_over() -> None:
    """A batch needs at least four requests per row, or its end would be most of it; alone, once is enough."""
    tape = made_tape(count=2)
    assert len(stream(tape, Schedule((16,))).order) == 64
    assert stream(tape, Schedule((1,))).order == tuple(range(6))
    assert stream(tape, Schedule((1,)), least=8).order == (0, 1, 2, 3, 4, 5, 0, 1)

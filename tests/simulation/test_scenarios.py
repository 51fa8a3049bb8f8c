"""Streams: who comes when, and how many at once."""

from __future__ import annotations

import numpy as np
import pytest

from adaptspec.errors import TapeError
from adaptspec.simulation.scenarios import (
    IN_PHASES,
    IN_TURN,
    WRONG,
    Phase,
    Schedule,
    Stream,
    in_phases,
    in_turn,
    mixed_scenarios,
    phases_of,
    recovery_tokens,
    stream,
    task_scenarios,
)
from tests.policies.tapes import made_tape


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


def test_every_task_and_the_worst_case_at_every_batch_size() -> None:
    cells = task_scenarios(made_tape(), [Schedule((1,)), Schedule((1, 4, 1))])
    assert {(cell.work, cell.batch) for cell in cells} == {
        (work, batch) for work in ("code", "json", "rag", WRONG) for batch in ("1", "1-4-1")
    }
    for cell in cells:
        tape = cell.stream.tape
        assert cell.work == WRONG or set(tape.tasks) == {cell.work}
        assert tape.views["draft-model"].agreed.any() == (cell.work != WRONG)
        assert not cell.mixed


def test_mixed_streams_hold_all_tasks() -> None:
    cells = mixed_scenarios(made_tape(), [Schedule((4,))])
    assert [cell.work for cell in cells] == [IN_TURN, IN_PHASES]
    assert all(cell.mixed and set(cell.stream.tape.tasks) == {"code", "json", "rag"} for cell in cells)


def test_a_phase_is_one_task_at_one_batch_size() -> None:
    tape = made_tape({"code": 0.6, "json": 0.9}, count=4)
    one = stream(tape, Schedule((1,)), in_phases(tape))
    assert phases_of(one) == (Phase(0, 4, 1), Phase(4, 8, 1))
    assert phases_of(one)[1].of(one).order == (4, 5, 6, 7)
    crowd = Stream(tape, tuple(in_phases(tape)), Schedule((1, 3)))
    assert phases_of(crowd) == (Phase(0, 4, 1), Phase(4, 8, 3))
    grown = Stream(tape.of_task("code"), (0, 1, 2, 3), Schedule((1, 3)))
    assert phases_of(grown) == (Phase(0, 2, 1), Phase(2, 4, 3))


def test_steady_traffic_and_traffic_that_never_stays_have_none() -> None:
    tape = made_tape({"code": 0.6, "json": 0.9}, count=4)
    assert phases_of(stream(tape.of_task("code"), Schedule((1,)))) == ()
    assert phases_of(stream(tape, Schedule((1,)), in_turn(tape))) == ()


def test_recovery_counts_tokens_until_the_rest_is_near_the_best() -> None:
    """Slow in the first two requests of the new phase; what was slow in the old one is not asked."""
    phases = (Phase(0, 2, 1), Phase(2, 6, 1))
    best, tokens = np.ones(6), np.array([10.0, 10.0, 20.0, 30.0, 40.0, 50.0])
    spent = np.array([9.0, 9.0, 3.0, 1.5, 1.0, 1.04])
    assert recovery_tokens(phases, spent, best, tokens) == [50.0]
    assert recovery_tokens(phases, best, best, tokens) == [0.0]
    assert recovery_tokens(phases, 2.0 * best, best, tokens) == [140.0]

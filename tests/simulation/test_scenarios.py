"""Streams: the order of requests, and how many run at once."""

from __future__ import annotations

import numpy as np
import pytest

from adaptspec.errors import TapeError
from adaptspec.simulation.scenarios import (
    Phase,
    Schedule,
    in_phases,
    in_turn,
    recovery_tokens,
    stream,
)
from tests.policies.tapes import made_tape


@pytest.mark.parametrize("text", ["", "many", "1-", "0", "1-0-1", "-4"])
def test_schedules_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(TapeError):
        Schedule.parse(text)


def test_stages_are_equal_parts_of_the_stream() -> None:
    made = stream(made_tape(count=4), Schedule((1, 16, 1)), min_requests=30)
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
    assert stream(tape, Schedule((1,)), min_requests=8).order == (0, 1, 2, 3, 4, 5, 0, 1)


def test_recovery_counts_tokens_until_the_rest_is_near_the_best() -> None:
    """Slow in the first two requests of the new phase; slow requests of the old one do not count."""
    phases = (Phase(0, 2, 1), Phase(2, 6, 1))
    best, tokens = np.ones(6), np.array([10.0, 10.0, 20.0, 30.0, 40.0, 50.0])
    spent = np.array([9.0, 9.0, 3.0, 1.5, 1.0, 1.04])
    assert recovery_tokens(phases, spent, best, tokens) == [50.0]
    assert recovery_tokens(phases, best, best, tokens) == [0.0]
    assert recovery_tokens(phases, 2.0 * best, best, tokens) == [140.0]

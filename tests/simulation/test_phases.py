"""Phases: where traffic shifts, and how long a policy is not yet as fast as it could be after that."""

from __future__ import annotations

import numpy as np

from adaptspec.simulation.phases import Phase, phases_of, recovery_tokens
from adaptspec.simulation.scenarios import Schedule, Stream, in_phases, in_turn, stream
from tests.simulation.tapes import made_tape


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

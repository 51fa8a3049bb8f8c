"""What is learned of a step is of the rows that were decided for and that it told of, and its parts are the whole."""

from __future__ import annotations

import numpy as np
import pytest

from adaptspec.control.policy import Decision
from adaptspec.control.step_times import StepTimes
from adaptspec.hosts.guests import Guests, Told
from adaptspec.hosts.rounds import Plan, Waiting, round_of
from adaptspec.request import Request, SamplingParams


def test_a_row_that_has_gone_and_one_that_has_come() -> None:
    """Of `a`, `b` and `c` that were decided for, `b` has gone; `d` came later: the round is of `c` and `a`."""
    guests = Guests(4, model_len=100, behind=2)
    for name in "abcd":
        guests.enter(Request(name, (0,) * 7, SamplingParams(max_tokens=50)))
    decided = np.array([1, 2, 3])
    decision = Decision(decided, np.zeros(3, dtype=np.int64), np.zeros(3, dtype=np.int64), number=9)
    of = Waiting(Plan(1, 3), list("abc"), guests.of(list("abc")), decided, decision, 0, 2, None)
    step = Waiting(Plan(2, 3), list("cda"), guests.of(list("cda")), decided, None, 5, 2, of)
    told = Told.of(guests, list("cda"), ([3, 2, 1], [2, 2, 0], [3, 3, 1]))
    record = round_of(step, of, decision, told, 0.01, number=4, guests=guests, times=StepTimes(), reads_along=True)
    assert record is not None
    assert record.request_ids == ("c", "a")
    assert (record.depths.tolist(), record.accepted.tolist(), record.emitted.tolist()) == ([3, 1], [2, 0], [3, 1])
    assert (record.decision, record.number, record.draft_steps, record.verify_tokens) == (9, 4, 2, 2 + 4 + 5)
    assert record.total_seconds == pytest.approx(record.draft_seconds + record.verify_seconds)
    gone = Told.of(guests, ["d"], ([2], [2], [3]))
    assert not round_of(step, of, decision, gone, 0.01, number=5, guests=guests, times=StepTimes(), reads_along=True)


def test_a_draft_that_a_limit_cut_counts_as_a_shorter_depth() -> None:
    """No stop rule ends drafts here. Counted at the depth that was decided, it would look as if one had."""
    guests = Guests(1, model_len=100, behind=1)
    guests.enter(Request("a", (0,) * 7, SamplingParams(max_tokens=50)))
    decided, zero = np.array([3]), np.zeros(1, dtype=np.int64)
    step = Waiting(Plan(1, 3), ["a"], guests.of(["a"]), decided, Decision(decided, zero, zero), 0, 2, None)
    told = Told.of(guests, ["a"], ([2], [1], [2]))
    assert step.decision is not None
    record = round_of(
        step, step, step.decision, told, 0.01, number=1, guests=guests, times=StepTimes(), reads_along=True
    )
    assert record is not None
    assert (record.depths.tolist(), record.drafted.tolist()) == ([2], [2])

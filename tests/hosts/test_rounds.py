"""What is learned of a step is of the rows that were decided for and that it told of, and its parts are the whole."""

from __future__ import annotations

import numpy as np
import pytest

from adaptspec.control.cost_model import CostModel
from adaptspec.decision import Decision
from adaptspec.hosts.guests import Guests, StepOutcome
from adaptspec.hosts.rounds import Chosen, Plan, TimedStep, Waiting, costs_of_steps, round_of, work_of_step
from adaptspec.request import Request, SamplingParams
from adaptspec.rounds import RoundRecord, RoundWork

COSTS = costs_of_steps()


def here(names: str) -> Guests:
    """Requests of 7 prompt tokens that may write 50."""
    guests = Guests(len(names), model_len=100, behind=2)
    for name in names:
        guests.enter(Request(name, (0,) * 7, SamplingParams(max_tokens=50)))
    return guests


def waiting(guests: Guests, ids: str, decision: Decision, prefill: int = 0) -> Waiting:
    """A step that drafts as was decided."""
    names, rows = guests.find(list(ids))
    depths, depth = decision.depths, int(decision.depths.max())
    chosen = Chosen(names, rows, guests.serials[rows], depths, decision, True, guests.changes, 0, 0)
    return Waiting(Plan(1, depth), chosen, prefill, max(depth - 1, 0), None)


def ended(
    guests: Guests, step: Waiting, ids: str, counts: list[list[int]], *, of: Waiting, seconds: float = 0.01
) -> TimedStep:
    """A step with what it reports of these requests; it has verified the drafts of another step."""
    told = StepOutcome.of(guests, list(ids), np.array(counts))
    context = guests.context(told.rows)
    work = work_of_step(step, told, context)
    return TimedStep(of, told, guests.serials[told.rows], context, work, seconds, 0.0)


def decided(depths: list[int]) -> Decision:
    zeros = np.zeros(len(depths), dtype=np.int64)
    return Decision(np.array(depths), zeros, zeros)


def test_a_row_that_has_gone_and_one_that_has_come() -> None:
    """Of `a`, `b` and `c` that were decided for, `b` has gone and `d` has its row: the round is of `c` and `a`."""
    guests = here("abc")
    of = waiting(guests, "abc", decided([1, 2, 3]))
    guests.leave("b")
    guests.enter(Request("d", (0,) * 7, SamplingParams(max_tokens=50)))
    step = waiting(guests, "cda", decided([3, 3, 3]), prefill=5)
    done = ended(guests, step, "cda", [[3, 2, 1], [2, 2, 0], [3, 3, 1]], of=of)
    record = round_of(done, 4, COSTS, reads_along=True)
    assert record is not None
    assert record.request_ids == ("c", "a")
    assert (record.depths.tolist(), record.accepted.tolist(), record.emitted.tolist()) == ([3, 1], [2, 0], [3, 1])
    assert record.decision is of.chosen.decision
    assert (record.number, record.draft_steps, record.target_tokens) == (4, 2, 2 + 4 + 5)
    assert record.timing.total == pytest.approx(record.timing.draft + record.timing.verify)
    gone = ended(guests, step, "d", [[2], [2], [3]], of=of)
    assert not round_of(gone, 5, COSTS, reads_along=True)


def plain_round(model: CostModel, seconds: float, prefill: int = 0) -> RoundRecord:
    """The record of a step of two rows that takes so long."""
    guests = here("ab")
    step = waiting(guests, "ab", decided([0, 0]), prefill)
    done = ended(guests, step, "ab", [[0, 0], [0, 0], [1, 1]], of=step, seconds=seconds)
    record = round_of(done, 1, model, reads_along=True)
    assert record is not None
    return record


def test_a_stall_counts_by_a_third() -> None:
    """Policies that learn from single steps would follow each. One that took an hour counts four times at most."""
    model = costs_of_steps()
    usual = model.seconds(RoundWork(2, 2, 14.0))
    for seconds, counted in ((3.0, 5 / 3), (3600.0, 4.0), (0.4, 0.8)):
        assert plain_round(model, seconds * usual).timing.total == pytest.approx(counted * usual)


def test_a_prompt_takes_its_share_of_a_step() -> None:
    """The round of the rows that decode is charged what is left."""
    model = costs_of_steps()
    whole, alone = model.seconds(RoundWork(2, 2, 14.0, prefill_tokens=500)), model.seconds(RoundWork(2, 2, 14.0))
    record = plain_round(model, 4.0 * whole, prefill=500)
    assert record.timing.total == pytest.approx(2.0 * alone)
    assert record.prefill_tokens == 500


def test_a_draft_that_a_limit_cut_counts_as_a_shorter_depth() -> None:
    """No stop rule ends drafts here. Counted at the depth that was decided, it would look as if one had."""
    guests = here("a")
    step = waiting(guests, "a", decided([3]))
    record = round_of(ended(guests, step, "a", [[2], [1], [2]], of=step), 1, COSTS, reads_along=True)
    assert record is not None
    assert (record.depths.tolist(), record.drafted.tolist()) == ([2], [2])

"""The modelled limit: near what the best fixed depth really earns, and off where drafts are wrong."""

from __future__ import annotations

import pytest

from adaptspec.analysis.limit import emitted_positions, modelled_best, survivals
from adaptspec.analysis.oracle import references
from adaptspec.simulation.cost_profiles import load_costs
from adaptspec.simulation.scenarios import Schedule, stream
from tests.simulation.tapes import made_tape, one_request


@pytest.mark.parametrize("machine", ["cpu-2-cores", "gpu-8b"])
def test_it_is_near_the_best_fixed_depth(machine: str) -> None:
    """Replayed depths differ from it by where rounds happen to fall, and by the ends of requests."""
    tape, costs = made_tape(count=10, length=200, prompt=1), load_costs(machine)
    known = references(stream(tape, Schedule((1,))), costs)
    assert modelled_best(tape, costs, 1) == pytest.approx(known.best_static / known.off, rel=0.05)


def test_with_drafts_that_are_always_wrong_it_is_off() -> None:
    assert modelled_best(made_tape().always_wrong(), load_costs("gpu-8b"), 1) == 1.0


def test_survival_is_counted_in_rounds() -> None:
    """Rounds of depth 2 over 1 1 1 0 1: two accepted, none of two (the third was the bonus), one of the last."""
    tape = one_request([1, 1, 1, 0, 1])
    assert survivals(tape, "draft-model", 2).tolist() == [2 / 3, 1 / 3]


def test_rounds_may_start_at_all_emitted_positions_but_the_first() -> None:
    tape = made_tape({"code": 0.5}, count=2, length=3, beyond=2)
    assert emitted_positions(tape).tolist() == [1, 2, 6, 7]
    assert emitted_positions(one_request([])).tolist() == []

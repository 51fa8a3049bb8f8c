"""Fixed shapes of drafts: what they earn is what walking the ranks one by one gives, and more choice never hurts."""

from __future__ import annotations

import pytest

from adaptspec.analysis.oracle import Tier, alone, tier_seconds
from adaptspec.analysis.static_trees import Shape, compare_shapes, goodput, shapes_table
from adaptspec.errors import TapeError
from adaptspec.simulation.machine import load_machine
from tests.policies.tapes import made_tape, with_candidates


@pytest.mark.parametrize("machine", ["cpu-2-cores", "gpu-8b"])
def test_a_chain_earns_what_the_fixed_depth_earns(machine: str) -> None:
    """Request by request, as the oracle counts it: prompts read, cached tokens, drafts cut near an answer's end."""
    tape, costs = made_tape(count=2, beyond=4, most=60), load_machine(machine)
    row = alone(costs, "draft-model", 5)
    for depth in (0, 3, 5):
        shape = Shape("chain", tuple((0,) * length for length in range(1, depth + 1)))
        seconds = sum(tier_seconds(tape, r, Tier(depth, "draft-model"), row) for r in range(len(tape)))
        expected = float((tape.lengths - 1).sum()) / seconds
        assert goodput(tape, "draft-model", costs, shape) == pytest.approx(expected, rel=1e-9)


def test_a_line_for_each_temperature_and_machine() -> None:
    lines = compare_shapes(with_candidates(made_tape(count=1)), "draft-model", [load_machine("cpu-2-cores")])
    assert len(lines) == len(shapes_table(lines).rows) == 1
    assert lines[0]["hit_1"] < lines[0]["hit_2"] <= lines[0]["hit_8"]
    with pytest.raises(TapeError, match="no drafter"):
        compare_shapes(made_tape(count=1), "medusa", [])
    with pytest.raises(TapeError, match="does not always draft"):
        compare_shapes(made_tape(count=1), "ngram", [])

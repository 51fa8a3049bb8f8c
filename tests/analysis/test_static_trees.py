"""Fixed shapes of drafts: what they earn is what walking the ranks one by one gives, and more choice never hurts."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.analysis.oracle import Tier, alone, tier_seconds
from adaptspec.analysis.static_trees import Shape, best_shapes, combs, compare_shapes, goodput, shapes_table, trees
from adaptspec.errors import TapeError
from adaptspec.simulation.cost_profiles import load_costs
from tests.policies.tapes import made_tape, with_candidates

CHANCES = np.array([0.6, 0.2, 0.1, 0.05, 0.02, 0.01, 0.01, 0.01])


@given(st.lists(st.sampled_from([0, 0, 0, 1, 2, 5, 9, 127]), min_size=1, max_size=30), st.integers(0, 40))
@settings(max_examples=100, deadline=None)
def test_a_walk_goes_on_while_the_next_rank_is_in_the_tree(ranks: list[int], which: int) -> None:
    """From every position, to the end of the request and no further."""
    shape = [*combs(CHANCES), *trees(CHANCES)][which * 7]
    kept = shape.accepted(np.array(ranks), np.full(len(ranks), len(ranks))).tolist()
    paths = set(shape.paths)
    for at, found in enumerate(kept):
        walks = list(accumulate(((rank,) for rank in ranks[at:]), lambda a, b: a + b))
        expected = 0
        while expected < len(walks) and walks[expected] in paths:
            expected += 1
        assert found == expected


def test_nodes_come_with_all_before_them_and_the_likeliest_first() -> None:
    for shape in [*combs(CHANCES), *trees(CHANCES)]:
        assert len(set(shape.paths)) == len(shape.paths)
        assert all(path[:-1] in {(), *shape.paths} for path in shape.paths)
    two = next(shape for shape in trees(CHANCES) if len(shape.paths) == 4 and shape.depth == 3)
    assert set(two.paths) == {(0,), (0, 0), (0, 0, 0), (1,)}


@pytest.mark.parametrize("machine", ["cpu-2-cores", "gpu-8b"])
def test_a_chain_earns_what_the_fixed_depth_earns(machine: str) -> None:
    """Request by request, as the oracle counts it: prompts read, cached tokens, drafts cut near an answer's end."""
    tape, costs = made_tape(count=2, beyond=4, most=60), load_costs(machine)
    row = alone(costs, "draft-model", 5)
    for depth in (0, 3, 5):
        shape = Shape("chain", tuple((0,) * length for length in range(1, depth + 1)))
        seconds = sum(tier_seconds(tape, r, Tier(depth, "draft-model"), row) for r in range(len(tape)))
        expected = float((tape.lengths - 1).sum()) / seconds
        assert goodput(tape, "draft-model", costs, shape) == pytest.approx(expected, rel=1e-9)


def test_every_kind_is_at_least_as_good_as_the_one_before() -> None:
    """Where right tokens are among the next candidates, trees earn more; where none is, chains are the best trees."""
    costs, tape = load_costs("gpu-8b"), made_tape({"code": 0.6}, count=2)
    alone_ = best_shapes(tape, "draft-model", costs)
    assert alone_["tree"].ratio == alone_["chain"].ratio >= 1.0
    best = best_shapes(with_candidates(tape), "draft-model", costs)
    assert best["tree"].ratio >= best["comb"].ratio > best["chain"].ratio


def test_a_line_for_each_temperature_and_machine() -> None:
    lines = compare_shapes(with_candidates(made_tape(count=1)), "draft-model", [load_costs("cpu-2-cores")])
    assert len(lines) == len(shapes_table(lines).rows) == 1
    assert lines[0]["hit_1"] < lines[0]["hit_2"] <= lines[0]["hit_8"]
    with pytest.raises(TapeError, match="no drafter"):
        compare_shapes(made_tape(count=1), "medusa", [])
    with pytest.raises(TapeError, match="does not always draft"):
        compare_shapes(made_tape(count=1), "ngram", [])

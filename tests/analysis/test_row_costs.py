"""A row's costs: alone they are the round's; shares of a batch undercut every real round."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.analysis.row_costs import alone, shares
from adaptspec.simulation.cost_profiles import MachineCosts, load_costs


def _round(costs: MachineCosts, drafts: list[int], context: int) -> float:
    """The true seconds of a round whose rows hold `context` tokens each."""
    size = len(drafts)
    steps = costs.drafters["draft-model"].start if any(drafts) else 0.0
    for step in range(max(drafts)):
        active = sum(d > step for d in drafts)
        steps += costs.step_seconds("draft-model", active, active * (context + step))
    return costs.overhead + steps + costs.verify_seconds(size, size + sum(drafts), size * context)


@pytest.mark.parametrize("machine", ["cpu-2-cores", "gpu-8b"])
@pytest.mark.parametrize("depth", [0, 1, 4, 7])
def test_alone_it_is_the_round(machine: str, depth: int) -> None:
    costs = load_costs(machine)
    row = alone(costs, "draft-model", 7)
    assert row.round(100, depth) == pytest.approx(_round(costs, [depth], 100))
    assert row.runs_model
    assert not alone(costs, "ngram", 7).runs_model


@settings(max_examples=60, deadline=None)
@given(
    machine=st.sampled_from(["cpu-2-cores", "gpu-8b"]),
    drafts=st.lists(st.integers(0, 7), min_size=1, max_size=16),
    context=st.integers(1, 500),
)
def test_no_round_is_cheaper_than_the_sum_of_its_shares(machine: str, drafts: list[int], context: int) -> None:
    """For every way of sharing; so a plan priced with shares bounds every policy. Fewer rows cost more each."""
    costs = load_costs(machine)
    ways = shares(costs, "draft-model", 7, 16)
    assert ways
    for row in ways:
        assert sum(row.round(context, depth) for depth in drafts) <= _round(costs, drafts, context) * (1.0 + 1e-9)


def test_with_a_linear_machine_full_rounds_are_shared_exactly() -> None:
    """Nothing is lost where every row drafts equally deep: the bound is tight there."""
    costs = load_costs("gpu-8b")
    row = shares(costs, "draft-model", 7, 16)[0]
    assert 16 * row.round(100, 3) == pytest.approx(_round(costs, [3] * 16, 100))

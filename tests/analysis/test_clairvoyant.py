"""The clairvoyant plan: equal to trying everything, never beaten by any fixed or random depths."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.analysis.clairvoyant import RowCosts, alone, plan_seconds, shares
from adaptspec.analysis.oracle import Tier, tier_seconds
from adaptspec.errors import ConfigError
from adaptspec.simulation.cost_profiles import MachineCosts, load_costs
from adaptspec.simulation.tape import DraftView, Tape, recorded, run_lengths
from tests.simulation.tapes import made_tape, one_request


def _by_trying(tape: Tape, rows: dict[str, RowCosts], deepest: int) -> float:
    """Every sequence of rounds of one short request, with the draft cache followed token by token."""
    length, prompt = int(tape.lengths[0]), int(tape.prompt_tokens[0])

    @functools.lru_cache(None)
    def best(at: int, cached: int) -> float:
        if at >= length:
            return 0.0
        context = prompt + at
        found = rows["draft-model"].round(context, 0) + best(at + 1, cached)
        for name, row in rows.items():
            view = tape.views[name]
            for depth in range(1, min(deepest, length - at - 1) + 1):
                drafted = min(depth, int(view.reach[at]))
                accepted = min(int(view.run[at]), drafted)
                seconds, kept = row.round(context, drafted, depth), cached
                if name == "draft-model":
                    seconds += row.catch_up * max(0, context - cached - 2)
                    kept = min(context + drafted - 1, context + accepted)
                found = min(found, seconds + best(at + accepted + 1, kept))
        return found

    return best(1, 0)


@settings(max_examples=60, deadline=None)
@given(
    agreed=st.lists(st.booleans(), min_size=1, max_size=9),
    lookup=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=10, max_size=10),
    prompt=st.integers(1, 40),
    catch_up=st.sampled_from([0.0, 5e-6, 3e-4, 2e-3]),
    both=st.booleans(),
)
def test_it_is_what_trying_everything_finds(
    agreed: list[bool], lookup: list[tuple[int, int]], prompt: int, catch_up: float, both: bool
) -> None:
    """Also where reading what was missed is dear, so that when to come back is the question; with a lookup, too."""
    flags = np.array([False, *agreed])
    size = len(flags)
    reach = np.array([r for r, _ in lookup[:size]])
    run = np.minimum(np.minimum([a for _, a in lookup[:size]], reach), size - np.arange(size))
    unknown = np.full(size, np.nan)
    views = {"draft-model": DraftView.of_agreement(flags)}
    rows = {"draft-model": alone(load_costs("cpu-2-cores"), "draft-model", 4)}
    if both:
        views["ngram"] = DraftView(run, reach, unknown, unknown, unknown)
        rows["ngram"] = alone(load_costs("cpu-2-cores"), "ngram", 4)
    tape = recorded("only", prompt, size, views)
    model = rows["draft-model"]
    rows["draft-model"] = RowCosts(
        model.verify, model.steps, catch_up, model.per_cached, model.draft_per_cached, model.draft_row
    )
    assert plan_seconds(tape, 0, rows) == pytest.approx(_by_trying(tape, rows, 4))


@pytest.mark.parametrize("machine", ["cpu-2-cores", "gpu-8b"])
def test_no_fixed_depth_beats_it(machine: str) -> None:
    tape = made_tape()
    row = alone(load_costs(machine), "draft-model", 7)
    for request in range(len(tape)):
        plan = plan_seconds(tape, request, {"draft-model": row})
        for depth in range(8):
            assert plan <= tier_seconds(tape, request, Tier(depth, "draft-model"), row) * (1.0 + 1e-12)


def test_it_never_drafts_what_is_wrong() -> None:
    """Without agreement the plan is plain decoding, and catching up is never paid."""
    tape = one_request([0] * 30, prompt=500)
    row = alone(load_costs("gpu-8b"), "draft-model", 7)
    assert plan_seconds(tape, 0, {"draft-model": row}) == pytest.approx(
        tier_seconds(tape, 0, Tier(0, "draft-model"), row)
    )


def test_one_token_takes_no_rounds() -> None:
    """The prompt's own pass yields it."""
    row = alone(load_costs("gpu-8b"), "draft-model", 7)
    assert plan_seconds(one_request([]), 0, {"draft-model": row}) == 0.0


def test_two_draft_models_are_refused() -> None:
    row = alone(load_costs("gpu-8b"), "draft-model", 7)
    tape = made_tape(count=1)
    with pytest.raises(ConfigError, match="one draft model"):
        plan_seconds(tape, 0, {"draft-model": row, "ngram": row})


def test_runs_are_capped_at_the_end() -> None:
    """Agreement beyond the last emitted token earns nothing."""
    assert run_lengths(np.ones(3, dtype=np.bool_)).tolist() == [3, 2, 1]
    tape = made_tape({"json": 1.0}, count=1, length=10, beyond=6, most=40)
    row = alone(load_costs("gpu-8b"), "draft-model", 7)
    assert plan_seconds(tape, 0, {"draft-model": row}) >= 2 * row.round(24, 0)


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

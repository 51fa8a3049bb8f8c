"""References: the short way agrees with the simulator, bounds hold, the gap is counted from the best fixed depth."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.analysis.oracle import References, RowCosts, Tier, alone, plan_seconds, references, shares
from adaptspec.control.language.library import find_policy
from adaptspec.control.language.loader import load_policy_spec
from adaptspec.simulation.machine import Machine, load_machine
from adaptspec.simulation.scenarios import Schedule, in_phases, stream
from adaptspec.simulation.simulator import replay, static_spec
from adaptspec.simulation.tape import UNRANKED, DraftView, Tape, recorded
from tests.policies.tapes import made_tape, with_candidates

BOTH = ("draft-model", "ngram")
TASKS = ("code", "json")


@pytest.mark.parametrize("machine", ["cpu-2-cores", "gpu-8b"])
def test_the_short_way_to_fixed_depths_is_the_simulators(machine: str) -> None:
    """At batch 1 tiers are added up request by request; a full replay of the static policy gives the same goodput."""
    tape, costs = made_tape(count=2, beyond=4, most=60), load_machine(machine)
    one = stream(tape, Schedule((1,)))
    known = references(one, costs, BOTH)
    for tier, goodput in known.tiers.items():
        assert replay(static_spec(tier.depth, tier.drafter), one, costs).goodput == pytest.approx(goodput), str(tier)


@pytest.mark.parametrize("machine", ["cpu-2-cores", "gpu-8b"])
def test_drafts_that_end_before_their_depth_are_priced_as_the_simulator_does(machine: str) -> None:
    """Elsewhere a draft that ends a text saves the other steps; where drafts run whole it saves none."""
    tape, costs = made_tape(count=2, length=8, most=60), load_machine(machine)
    left = np.concatenate([8 - np.arange(8)] * len(tape))
    tape = replace(
        tape, views={name: replace(view, reach=np.minimum(view.reach, left)) for name, view in tape.views.items()}
    )
    one = stream(tape, Schedule((1,)))
    for tier, goodput in references(one, costs, BOTH).tiers.items():
        assert replay(static_spec(tier.depth, tier.drafter), one, costs).goodput == pytest.approx(goodput), str(tier)


def test_fixed_combs_are_added_up_as_the_simulator_replays_them() -> None:
    """To the ceiling of nodes, beyond which the deepest siblings are left out."""
    tape, costs = with_candidates(made_tape(count=2, beyond=4, most=60), most=8), load_machine("gpu-8b")
    one = stream(tape, Schedule((1,)))
    known = references(one, costs, BOTH, depths=(0, 1, 3, 12), width=8)
    assert {tier.width for tier in known.tiers} == {1, 2, 4, 8}
    for tier, goodput in known.tiers.items():
        replayed = replay(static_spec(tier.depth, tier.drafter, tier.width), one, costs).goodput
        assert replayed == pytest.approx(goodput), str(tier)


@pytest.mark.parametrize("batch", [1, 4])
def test_no_tree_passes_the_oracle_that_knows_ranks(batch: int) -> None:
    """It earns more than the one of chains, and than what branches: fixed combs, and a policy that adapts."""
    tape, costs = with_candidates(made_tape(), most=8), load_machine("gpu-8b")
    made = stream(tape, Schedule((batch,)))
    chains, trees = (references(made, costs, depths=(0, 1, 3, 7), width=width) for width in (1, 8))
    assert trees.clairvoyant is not None
    assert chains.clairvoyant is not None
    assert trees.best_static >= chains.best_static
    spec = load_policy_spec(find_policy("goodput"))
    wide = spec.model_copy(update={"spec": spec.spec.model_copy(update={"max_width": 8, "drafters": ["draft-model"]})})
    policy = replay(wide, made, costs).goodput
    assert trees.clairvoyant > max(policy, trees.best_static, chains.clairvoyant)


@pytest.mark.parametrize("machine", ["cpu-2-cores", "gpu-8b"])
@pytest.mark.parametrize("batch", [1, 4])
def test_nothing_passes_the_clairvoyant_oracle(machine: str, batch: int) -> None:
    """Exact alone, a bound in a batch: above every tier, each request's best, and a policy that adapts."""
    tape, costs = made_tape(), load_machine(machine)
    made = stream(tape, Schedule((batch,)))
    known = references(made, costs, depths=(0, 1, 3, 7))
    assert known.clairvoyant is not None
    assert known.best_static == max(known.tiers.values()) >= known.off
    if batch == 1:
        assert known.per_request_best is not None
        assert known.best_static <= known.per_request_best <= known.clairvoyant
    else:
        assert known.per_request_best is None
    policy = replay(load_policy_spec(find_policy("goodput")), made, costs).goodput
    assert max(policy, known.best_static) < known.clairvoyant


@pytest.mark.parametrize("batch", [1, 4])
def test_the_best_of_each_phase_is_no_worse_than_the_best_of_all(batch: int) -> None:
    """Where traffic shifts; below the clairvoyant oracle. Alone it says what each request takes."""
    tape, costs = made_tape({"code": 0.3, "json": 0.95}, count=8), load_machine("gpu-8b")
    one = stream(tape, Schedule((batch,)), in_phases(tape))
    known = references(one, costs, depths=(0, 1, 3, 7))
    assert known.per_phase_best is not None
    assert known.clairvoyant is not None
    assert known.best_static < known.per_phase_best < known.clairvoyant
    assert (known.phase_seconds is not None) == (batch == 1)
    if known.phase_seconds is not None:
        parts = [references(stream(tape.of_task(task), Schedule((1,))), costs, depths=(0, 1, 3, 7)) for task in TASKS]
        emitted = [int((tape.of_task(task).lengths - 1).sum()) for task in TASKS]
        seconds = [count / part.best_static for count, part in zip(emitted, parts, strict=True)]
        assert known.phase_seconds.reshape(2, -1).sum(axis=1).tolist() == pytest.approx(seconds)
    assert references(stream(tape.of_task("code"), Schedule((batch,))), costs).per_phase_best is None


def test_with_drafts_that_are_always_wrong_nothing_beats_off() -> None:
    tape = made_tape(count=2).always_wrong()
    known = references(stream(tape, Schedule((1,))), load_machine("cpu-2-cores"), BOTH)
    assert known.best == Tier(0, "draft-model")
    assert known.clairvoyant == pytest.approx(known.off)
    assert known.gap_closed(known.off) is None, "there is no gap to close"


def test_the_gap_is_counted_from_the_best_fixed_depth() -> None:
    off, three = Tier(0, "draft-model"), Tier(3, "draft-model")
    known = References({off: 100.0, three: 150.0}, None, 250.0)
    assert (known.off, known.best, known.best_static) == (100.0, three, 150.0)
    assert known.gap_closed(175.0) == pytest.approx(0.25)
    assert known.gap_closed(140.0) == pytest.approx(-0.1)
    assert References(known.tiers, None, None).gap_closed(175.0) is None
    assert (str(off), str(three)) == ("off", "draft-model at 3")


@pytest.mark.parametrize("machine", ["cpu-2-cores", "gpu-8b"])
@pytest.mark.parametrize("prompt", [509, 510, 511, 512, 1500])
def test_prompts_that_take_several_rounds_to_catch_up_are_read_as_the_simulator_reads_them(
    machine: str, prompt: int
) -> None:
    """The draft model reads 512 tokens a round, and drafts in the round that ends it: also at the boundary."""
    tape, costs = made_tape({"json": 0.9}, count=2, length=20, prompt=prompt), load_machine(machine)
    one = stream(tape, Schedule((1,)))
    known = references(one, costs, BOTH, depths=(0, 3))
    for tier, goodput in known.tiers.items():
        assert replay(static_spec(tier.depth, tier.drafter), one, costs).goodput == pytest.approx(goodput), str(tier)
    assert known.clairvoyant is not None
    assert known.clairvoyant >= known.best_static


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
    rows = {"draft-model": alone(load_machine("cpu-2-cores"), "draft-model", 4)}
    if both:
        views["ngram"] = DraftView(run, reach, np.where(run > 0, 0, UNRANKED), unknown, unknown, unknown)
        rows["ngram"] = alone(load_machine("cpu-2-cores"), "ngram", 4)
    tape = recorded("only", prompt, size, views)
    model = rows["draft-model"]
    rows["draft-model"] = RowCosts(
        model.verify, model.steps, catch_up, model.per_cached, model.draft_per_cached, model.draft_row
    )
    assert plan_seconds(tape, 0, rows) == pytest.approx(_by_trying(tape, rows, 4))


def _round(costs: Machine, drafts: list[int], context: int) -> float:
    """The true seconds of a round whose rows hold `context` tokens each."""
    size = len(drafts)
    steps = costs.drafters["draft-model"].start if any(drafts) else 0.0
    for step in range(max(drafts)):
        active = sum(d > step for d in drafts)
        steps += costs.step_seconds("draft-model", active, active * (context + step))
    return costs.overhead + steps + costs.verify_seconds(size, size + sum(drafts), size * context)


@settings(max_examples=60, deadline=None)
@given(
    machine=st.sampled_from(["cpu-2-cores", "gpu-8b"]),
    drafts=st.lists(st.integers(0, 7), min_size=1, max_size=16),
    context=st.integers(1, 500),
)
def test_no_round_is_cheaper_than_the_sum_of_its_shares(machine: str, drafts: list[int], context: int) -> None:
    """For every way of sharing; so a plan priced with shares bounds every policy. Fewer rows cost more each."""
    costs = load_machine(machine)
    ways = shares(costs, "draft-model", 7, 16)
    assert ways
    for row in ways:
        assert sum(row.round(context, depth) for depth in drafts) <= _round(costs, drafts, context) * (1.0 + 1e-9)

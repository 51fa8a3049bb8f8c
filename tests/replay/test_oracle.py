"""References: the short way agrees with the simulator, bounds hold, the gap is counted from the best fixed depth."""

from __future__ import annotations

import pytest

from adaptspec.control.language.build import load_policy_spec
from adaptspec.control.language.library import find_policy
from adaptspec.replay.costs import load_costs
from adaptspec.replay.oracle import References, Tier, references
from adaptspec.replay.simulator import replay, static_spec
from adaptspec.replay.streams import Schedule, in_phases, stream
from adaptspec.replay.world import WorldSettings
from tests.replay.worlds import made_tape

BOTH = ("draft-model", "ngram")
TASKS = ("code", "json")


@pytest.mark.parametrize("machine", ["cpu-2-cores", "gpu-8b"])
def test_the_short_way_to_fixed_depths_is_the_simulators(machine: str) -> None:
    """At batch 1 tiers are added up request by request; a full replay of the static policy gives the same goodput."""
    tape, costs = made_tape(count=2, beyond=4, most=60), load_costs(machine)
    one = stream(tape, Schedule((1,)))
    known = references(one, costs, BOTH)
    for tier, goodput in known.tiers.items():
        assert replay(static_spec(tier.depth, tier.drafter), one, costs).goodput == pytest.approx(goodput), str(tier)


@pytest.mark.parametrize("machine", ["cpu-2-cores", "gpu-8b"])
@pytest.mark.parametrize("batch", [1, 4])
def test_nothing_passes_the_clairvoyant_oracle(machine: str, batch: int) -> None:
    """Exact alone, a bound in a batch: above every tier, each request's best, and a policy that adapts."""
    tape, costs = made_tape(), load_costs(machine)
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
    tape, costs = made_tape({"code": 0.3, "json": 0.95}, count=8), load_costs("gpu-8b")
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
    known = references(stream(tape, Schedule((1,))), load_costs("cpu-2-cores"), BOTH)
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


def test_streams_that_change_size_have_tiers_but_no_oracle() -> None:
    made = stream(made_tape(count=1), Schedule((1, 4, 1)))
    known = references(made, load_costs("cpu-2-cores"), depths=(0, 2))
    assert known.clairvoyant is known.per_request_best is None
    assert set(known.tiers) == {Tier(0, "draft-model"), Tier(2, "draft-model")}


@pytest.mark.parametrize("machine", ["cpu-2-cores", "gpu-8b"])
@pytest.mark.parametrize("prompt", [509, 510, 511, 512, 1500])
def test_prompts_that_take_several_rounds_to_catch_up_are_read_as_the_simulator_reads_them(
    machine: str, prompt: int
) -> None:
    """The draft model reads 512 tokens a round, and drafts in the round that ends it: also at the boundary."""
    tape, costs = made_tape({"json": 0.9}, count=2, length=20, prompt=prompt), load_costs(machine)
    one = stream(tape, Schedule((1,)))
    known = references(one, costs, BOTH, depths=(0, 3))
    for tier, goodput in known.tiers.items():
        assert replay(static_spec(tier.depth, tier.drafter), one, costs).goodput == pytest.approx(goodput), str(tier)
    assert known.clairvoyant is not None
    assert known.clairvoyant >= known.best_static


def test_noise_is_left_out_of_references() -> None:
    one, costs = stream(made_tape(count=1), Schedule((4,))), load_costs("cpu-2-cores")
    quiet = references(one, costs, depths=(0, 2))
    assert references(one, costs, settings=WorldSettings(noise=0.3), depths=(0, 2)).tiers == quiet.tiers

"""The speed-up follows from what rounds did and cost, not from when the machine was fast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from adaptspec.control.controller import Controller
from adaptspec.control.cost_model import CostModel
from adaptspec.rounds import RoundRecord
from adaptspec.simulation.simulator import SimulatorSettings, replay
from adaptspec.telemetry.speedup import Estimate, round_features, speedup
from tests.control.helpers import caught_up, record, table, timed
from tests.policies.world import Clock, seeded, spec_of
from tests.policies.worlds import CLOCKS, HOPELESS, SHIFTS, STEADY

PLAIN, DRAFTING, REJECTED = record([0], [0]), record([3], [2]), record([3], [0])


def learned(*records: RoundRecord) -> CostModel:
    """The cost model after these rounds."""
    costs = table()
    for one in records:
        costs.observe(one.work, one.timing)
    return costs


def estimate(costs: CostModel, records: Sequence[RoundRecord]) -> Estimate | None:
    ran, plain = round_features(costs, records)
    return speedup(costs, ran.sum(axis=0), plain.sum(axis=0))


def value(costs: CostModel, records: Sequence[RoundRecord]) -> float:
    found = estimate(costs, records)
    assert found is not None
    return found.value


def true_speedup(records: Sequence[RoundRecord]) -> float:
    """By the quiet machine that timed these rounds: seconds of plain rounds for the same tokens."""
    plain = sum(record([0] * len(one.rows), [0] * len(one.rows)).timing.total * one.emitted.mean() for one in records)
    return plain / sum(one.timing.total for one in records)


def at_pace(records: Sequence[RoundRecord], factor: float) -> list[RoundRecord]:
    """The same rounds on a machine on which everything takes `factor` times as long."""
    return [
        timed(one, factor * one.timing.total, draft=factor * one.timing.draft, verify=factor * one.timing.verify)
        for one in records
    ]


def quiet(records: Sequence[RoundRecord]) -> list[RoundRecord]:
    """The same rounds on the quiet machine."""
    again = {True: DRAFTING, False: PLAIN}
    return [again[bool(one.work.drafts)] for one in records]


def test_without_drafts_it_is_exactly_one() -> None:
    """Whatever the clock did, and whatever the cost model believes."""
    rounds = [PLAIN, *at_pace([PLAIN] * 20, 3.0), record([0, 0], [0, 0]), *at_pace([PLAIN], 50.0)]
    assert estimate(learned(*rounds), rounds) == Estimate(1.0, 1.0, 1.0)
    assert estimate(table(), rounds) == Estimate(1.0, 1.0, 1.0)


def test_before_the_first_round_it_is_unknown() -> None:
    assert estimate(table(), []) is None


def test_a_clock_that_changes_does_not_move_it() -> None:
    """Drafts on a slow machine, then a fast one, then plain rounds, then a slow one again."""
    drafts, plain = [DRAFTING, DRAFTING, PLAIN] * 60, [PLAIN] * 60
    phases = (at_pace(drafts, 1.0), at_pace(drafts, 1 / 3), at_pace(plain, 1 / 3), at_pace(plain, 1.0), drafts)
    truth, costs = true_speedup(drafts), table()
    served: list[RoundRecord] = []
    for phase in phases:
        for one in phase:
            costs.observe(one.work, one.timing)
        served += phase
        assert value(costs, phase) == pytest.approx(truth if phase[0].work.drafts else 1.0, rel=0.1)
        assert value(costs, served) == pytest.approx(true_speedup(quiet(served)), rel=0.1)


def test_drafts_that_are_rejected_make_it_less_than_one() -> None:
    rounds = [REJECTED, PLAIN] * 50
    found = estimate(learned(*rounds), rounds)
    assert found is not None
    assert found.high < 1.0
    assert found.value == pytest.approx(true_speedup(rounds), rel=0.05)


def test_a_stall_in_a_round_changes_nothing() -> None:
    rounds = [DRAFTING, PLAIN] * 50
    usual = value(learned(*rounds), rounds)
    stalled = [*rounds[:60], *at_pace([DRAFTING], 30.0), *rounds[61:]]
    assert value(learned(*stalled), stalled) == pytest.approx(usual, rel=0.02)


def test_reading_prompts_counts_on_neither_side() -> None:
    rounds = [DRAFTING, PLAIN] * 50
    costs = learned(*rounds)
    prompts = [replace(one, work=one.work._replace(prefill_tokens=500)) for one in rounds]
    assert estimate(costs, prompts) == estimate(costs, rounds)


def test_what_a_draft_model_reads_is_paid_by_speculation() -> None:
    """It catches up only where it drafts."""
    rounds = [DRAFTING, PLAIN] * 50
    costs = learned(*rounds, *[caught_up(DRAFTING, 40)] * 10)
    assert value(costs, [caught_up(DRAFTING, 40), PLAIN]) < value(costs, [DRAFTING, PLAIN])


def test_the_interval_covers_the_truth() -> None:
    """On simulated machines that stall, slow down and are noisy, under policies that draft by their own choice."""
    covered = []
    for world in (STEADY[0], STEADY[3], STEADY[5], HOPELESS[0], SHIFTS[0], CLOCKS[0]):
        for clock in (Clock(0.05), Clock(0.05, slow=(200, 10**6, 3.0)), Clock(0.2, 0.02, 10.0)):
            kept: list[CostModel] = []

            def controller(*given: object, kept: list[CostModel] = kept, **named: object) -> Controller:
                kept.append(named["cost"])  # type: ignore[arg-type]
                return Controller(*given, **named)  # type: ignore[arg-type]

            machine = world.machine.costs()
            stats = replay(
                seeded(spec_of("goodput"), 1),
                world.stream(1),
                machine,
                SimulatorSettings(noise=clock.noise, seed=1),
                pace=clock.pace(1),
                keep=True,
                controller=controller,
            )
            true_ran = true_plain = 0.0
            for one in stats.records:
                work = one.work
                one_token = machine.overhead + machine.verify_seconds(work.rows, work.rows, work.context_tokens)
                paced = one.timing.total / clock.pace(1)(one.number - 1)
                true_ran += paced if work.drafts else one_token
                true_plain += one_token * (one.emitted.mean() if work.drafts else 1.0)
            found = estimate(kept[0], stats.records)
            covered.append(found is None or found.low <= true_plain / true_ran <= found.high)
    assert sum(covered) >= 0.95 * len(covered)

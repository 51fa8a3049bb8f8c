"""The sink: every round counts once, however it is read, and the engine thread does next to nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from adaptspec.control.cost_model import CostModel
from adaptspec.request import Request, SpeculationParams
from adaptspec.results import Completion, FinishReason, SpeculationStats, Timings
from adaptspec.rounds import RoundRecord
from adaptspec.telemetry.earnings import Earnings, EarningsSnapshot
from adaptspec.telemetry.request_store import RequestStore
from adaptspec.telemetry.static_tiers import StaticTier, TierEarnings
from adaptspec.telemetry.totals import Totals
from tests.control.helpers import caught_up, record, table, timed
from tests.telemetry.feeding import made
from tests.trees import SIBLING, branching


def ending(name: str) -> Completion:
    times = Timings(0.0, 0.0, 0.5, 1.0)
    return Completion(name, "", (1,), 3, FinishReason.STOP, SpeculationStats(), times)


def begun(costs: CostModel | None = None, *, tasks: int = 1) -> tuple[RequestStore, Earnings]:
    store, earnings = made(Earnings, rows=1)
    earnings.begin(costs or table(), ("draft-model",), 1, tasks)
    return store, earnings


def served(
    requests: int, rounds: int, one: RoundRecord, *, read_every: int = 10**9, plain: Sequence[RoundRecord] = ()
) -> EarningsSnapshot:
    """Requests one after the other, all in row 0; the first rounds of each are `plain`, then the draft reads it."""
    store, earnings = begun(tasks=2)
    for number in range(requests):
        request = Request(f"r{number}", (1, 2, 3))
        store.started(request)
        for own in (*(plain or (record([0], [0]),)), caught_up(one, 3), *[one] * (rounds - 1)):
            store.emit(replace(own, request_ids=(request.id,)))
        store.finished(request, ending(request.id))
        if number % read_every == 0:
            store.settle()
    store.settle()
    return earnings.snapshot()


def test_every_round_is_counted_once_however_often_it_is_read() -> None:
    """Sums do not depend on when they are looked at; guesses follow what is known by then."""
    one = record([3], [2])
    rarely, often = served(40, 8, one), served(40, 8, one, read_every=1)
    assert rarely.totals.rounds == often.totals.rounds == 360
    assert (rarely.saved_tokens, rarely.wasted_tokens) == (often.saved_tokens, often.wasted_tokens) == (640, 320)
    assert rarely.off is not None
    assert often.off is not None
    assert rarely.off.tokens == often.off.tokens == 1000
    assert rarely.off.against == pytest.approx(often.off.against)
    assert rarely.off.seconds == pytest.approx(often.off.seconds, rel=0.01)
    assert rarely.dropped == often.dropped == 0


def test_a_pause_of_the_machine_in_a_round_does_not_count_as_gain() -> None:
    """The estimate was the measured time times the gain: a pause in a round that accepted much counted many times."""
    plain, one = [record([0], [0])] * 20, record([3], [3])
    usual = served(40, 2, one, plain=plain)
    store, earnings = begun(tasks=2)
    for number in range(40):
        request = Request(f"r{number}", (1, 2, 3))
        store.started(request)
        for i, own in enumerate((*plain, caught_up(one, 3), one)):
            pause = 20 if (number, i) == (30, 21) else 1
            store.emit(timed(replace(own, request_ids=(request.id,)), pause * own.timing.total))
            if number >= 30:  # each round by itself
                store.settle()
        store.finished(request, ending(request.id))
    store.settle()
    paused = earnings.snapshot().speedup
    assert usual.speedup is not None
    assert paused is not None
    assert paused.value == pytest.approx(usual.speedup.value, rel=0.01)


def test_what_a_tier_earned_is_said_against_off_and_the_best() -> None:
    """Three tokens a round for two draft steps' price are a gain, as plain rounds that ran show."""
    seen = served(40, 10, record([2], [2]))
    assert seen.off is not None
    assert seen.speedup is not None
    assert seen.speedup.low < seen.speedup.value == seen.off.seconds / seen.off.against < seen.speedup.high
    plain, drafting = record([0], [0]).timing.total, record([2], [2]).timing.total
    assert seen.speedup.value == pytest.approx(31 * plain / (plain + 10 * drafting), rel=0.01)
    assert seen.best_static is not None
    assert str(seen.best_static.tier) == "draft-model at 2"
    assert seen.regret is not None
    assert seen.regret.low < seen.regret.value < seen.regret.high
    assert seen.regret.value == pytest.approx(seen.best_static.against / seen.best_static.seconds - 1.0)
    assert seen.tier_share["2"] == pytest.approx(10 / 11)
    assert dict(seen.drafts_by_drafter) == {"draft-model": 400}


def test_a_node_that_was_not_emitted_was_verified_in_vain() -> None:
    """Of five nodes two were accepted, along a path of two; the chain of three beside it got nothing."""
    seen = served(10, 10, branching(SIBLING))
    assert (seen.saved_tokens, seen.wasted_tokens) == (200, 300)
    assert (seen.totals.drafted_tokens, seen.totals.nodes) == (300, 500)
    assert dict(seen.drafts_by_drafter) == {"draft-model": 100}
    assert dict(seen.nodes_by_drafter) == {"draft-model": 500}
    assert dict(seen.accepted_by_drafter) == {"draft-model": 200}


def test_what_never_ran_is_no_reference() -> None:
    """Whoever is off says nothing of drafts, and whoever always drafts nothing of plain decoding: no figure is made up,
    least of all one that says that all is well.
    """
    off = served(40, 10, record([0], [0], depths=[0]))
    assert [tier.known for tier in off.tiers] == [True] + [False] * 5
    assert off.speedup is not None
    assert off.speedup.value == pytest.approx(1.0)
    assert (off.best_static, off.regret) == (None, None)
    assert served(1, 100, record([3], [2])).speedup is None


def drafting_with_plain_rounds(slower: float, rounds: int) -> list[RoundRecord]:
    """Rounds at depth 3 that accept two tokens; one in ten is plain."""
    return [record([0], [0], slower=slower) if i % 10 == 0 else record([3], [2], slower=slower) for i in range(rounds)]


def speedup_of(now: EarningsSnapshot, before: EarningsSnapshot | None = None) -> float:
    more = now.compared_since(before or EarningsSnapshot())
    return more.off_seconds / more.seconds


@pytest.mark.parametrize(("first", "then"), [(3.0, 1.0), (1.0, 3.0)])
def test_a_machine_that_changes_speed_does_not_change_the_speedup(first: float, then: float) -> None:
    """Plain and drafting rounds become faster alike; the estimate must not compare rounds of before and after."""
    plain, drafting = record([0], [0]).timing.total, record([3], [2]).timing.total
    true = (1 + 9 * 3) * plain / (plain + 9 * drafting)
    store, earnings = begun()
    before = EarningsSnapshot()
    for slower in (first, then):
        for lot in range(50):
            for one in drafting_with_plain_rounds(slower, 40):
                store.emit(one)
            store.settle()
            now = earnings.snapshot()
            if lot in (0, 9, 49):  # just after the change, and later
                assert speedup_of(now, before) == pytest.approx(true, rel=0.1)
                before = now
    assert speedup_of(earnings.snapshot()) == pytest.approx(true, rel=0.1)


@pytest.mark.parametrize("then", [1.0, 3.0, 9.0])
def test_a_window_without_drafts_has_a_speedup_of_one(then: float) -> None:
    """Exactly, however the machine changes: what ran is plain decoding."""
    store, earnings = begun()
    for one in drafting_with_plain_rounds(3.0, 400):
        store.emit(one)
    store.settle()
    before = earnings.snapshot()
    for i in range(400):
        store.emit(record([0], [0], slower=then * (1.0 + 0.3 * (i % 3)), depths=[0]))
    store.settle()
    more = earnings.snapshot().compared_since(before)
    assert more.tokens == 400
    assert more.off_seconds == more.seconds
    assert (more.best_compared_seconds, more.best_seconds) == (0.0, 0.0)


def test_requests_that_asked_for_no_speculation_are_not_compared() -> None:
    """They show what plain rounds take, but say nothing about the policy: the rest of the traffic does."""
    plain, drafting = record([0], [0]).timing.total, record([3], [2]).timing.total
    store, earnings = begun()
    declining = Request("plain", (1, 2, 3), speculation=SpeculationParams(max_depth=0))
    for request, one in ((declining, record([0], [0])), (Request("fast", (1, 2, 3)), record([3], [2]))):
        store.started(request)
        for _ in range(200):
            store.emit(replace(one, request_ids=(request.id,)))
        store.finished(request, ending(request.id))
        store.settle()
    seen = earnings.snapshot()
    assert seen.off is not None
    assert seen.off.tokens == 600
    assert speedup_of(seen) == pytest.approx(3 * plain / drafting, rel=0.02)


def snapshot(tokens: int, seconds: float, off: float, fixed: float) -> EarningsSnapshot:
    tiers = (
        TierEarnings(StaticTier(0), off, seconds, 0.1, tokens),
        TierEarnings(StaticTier(3, "ngram"), fixed, seconds, 0.1, tokens),
    )
    totals = Totals().plus([record([3], [2])] * tokens)
    return EarningsSnapshot(totals=totals, tiers=tiers)

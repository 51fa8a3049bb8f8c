"""The sink: every round counts once, however it is read, and the engine thread does next to nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from adaptspec.telemetry.earnings import Earnings, EarningsSnapshot
from adaptspec.types import Completion, FinishReason, Reason, Request, RoundRecord, SpeculationStats, Timings
from tests.control.helpers import record, table


def ending(name: str) -> Completion:
    times = Timings(0.0, 0.0, 0.5, 1.0)
    return Completion(name, "", (1,), 3, FinishReason.STOP, SpeculationStats(), times)


def served(requests: int, rounds: int, one: RoundRecord, *, read_every: int = 10**9) -> EarningsSnapshot:
    """Requests one after the other, all in row 0; the first round of each is plain, in the next the draft reads it."""
    earnings = Earnings(pause=60.0)
    earnings.begin(table(), ("draft-model",), 1, 2)
    for number in range(requests):
        request = Request(f"r{number}", (1, 2, 3))
        earnings.started(request)
        for own in (record([0], [0]), replace(one, caught_up=3), *[one] * (rounds - 1)):
            earnings.emit(replace(own, request_ids=(request.id,)))
        earnings.finished(request, ending(request.id))
        if number % read_every == 0:
            earnings.snapshot()
    earnings.close()
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


def test_what_a_tier_earned_is_said_against_off_and_the_best() -> None:
    """Three tokens a round for two draft steps' price are a gain, as plain rounds that ran show."""
    seen = served(40, 10, record([2], [2]))
    assert seen.off is not None
    assert seen.speedup is not None
    assert seen.speedup.low < seen.speedup.value == seen.off.seconds / seen.off.against < seen.speedup.high
    plain, drafting = record([0], [0]).total_seconds, record([2], [2]).total_seconds
    assert seen.speedup.value == pytest.approx(31 * plain / (plain + 10 * drafting), rel=0.01)
    assert seen.best_static is not None
    assert str(seen.best_static.tier) == "draft-model at 2"
    assert seen.regret is not None
    assert seen.regret.low < seen.regret.value < seen.regret.high
    assert seen.regret.value == pytest.approx(seen.best_static.against / seen.best_static.seconds - 1.0)
    assert seen.tier_share["2"] == pytest.approx(10 / 11)
    assert dict(seen.drafts_by_drafter) == {"draft-model": 400}


def test_what_never_ran_is_no_reference() -> None:
    """Whoever is off says nothing of drafts, and whoever always drafts nothing of plain decoding: no figure is made up,
    least of all one that says that all is well.
    """
    off = served(40, 10, record([0], [0], depths=[0]))
    assert [tier.known for tier in off.tiers] == [True] + [False] * 5
    assert off.speedup is not None
    assert off.speedup.value == pytest.approx(1.0)
    assert off.regret is None
    assert served(1, 100, record([3], [2])).speedup is None


def test_a_table_that_rounds_contradict_is_said_to_be() -> None:
    costs, earnings = table(), Earnings(pause=60.0)
    earnings.begin(costs, ("draft-model",), 1, 1)
    assert not earnings.snapshot().unsure
    costs._unsure[False, 0] = 0
    costs.doubts = 1
    assert (earnings.snapshot().unsure, earnings.snapshot().doubts) == (True, 1)
    earnings.close()


def test_what_guards_do_is_counted() -> None:
    earnings = Earnings(pause=60.0)
    earnings.begin(table(), ("draft-model",), 1, 1)
    for reason, rounds in ((Reason.POLICY, 2), (Reason.GUARD, 5), (Reason.PROBE, 2), (Reason.POLICY, 1)):
        one = record([1], [0])
        one.reasons[:] = int(reason)
        for _ in range(rounds):
            earnings.emit(one)
    seen = earnings.snapshot()
    assert (seen.guard_switches, seen.probes, seen.probes_won) == (1, 1, 1)
    earnings.close()


def test_nothing_is_said_before_it_knows_the_machine() -> None:
    """Rounds that come before wait for it."""
    earnings = Earnings(pause=60.0)
    earnings.emit(record([1], [1]))
    before = earnings.snapshot()
    assert (before.totals.rounds, before.tiers) == (0, ())
    assert (before.speedup, before.regret) == (None, None)
    earnings.begin(table(), ("draft-model",), 1, 1)
    assert earnings.snapshot().totals.rounds == 1
    earnings.close()


def test_a_queue_that_overflows_says_so() -> None:
    earnings = Earnings(waiting=5, pause=60.0)
    earnings.begin(table(), ("draft-model",), 1, 1)
    for _ in range(9):
        earnings.emit(record([1], [1]))
    assert earnings.snapshot().dropped == 4
    earnings.close()


def test_a_request_that_failed_spoils_no_figure() -> None:
    """It emits nothing in its last round."""
    earnings = Earnings(pause=60.0)
    earnings.begin(table(), ("draft-model",), 1, 1)
    for number in range(300):
        one = record([number % 2 * 3], [number % 2 * 2])
        earnings.emit(replace(one, emitted=np.array([0])) if number == 100 else one)
    assert all(np.isfinite(tier.seconds) for tier in earnings.snapshot().tiers if tier.known)
    assert any(tier.known for tier in earnings.snapshot().tiers)
    earnings.close()

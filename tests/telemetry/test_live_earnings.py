"""Earnings as plain data: sums since the start, and what is new since the last time, tier by tier."""

from __future__ import annotations

import json

import pytest

from adaptspec.telemetry.earnings import EarningsSnapshot
from adaptspec.telemetry.live_feed import LiveFeed
from adaptspec.telemetry.live_earnings import COMPARED_COLUMNS, compared, earned
from adaptspec.telemetry.static_tiers import StaticTier, TierEarnings
from tests.telemetry.test_live_feed import Clock, request, round_of


def snapshot(tokens: int, seconds: float, off: float, fixed: float) -> EarningsSnapshot:
    tiers = (
        TierEarnings(StaticTier(0), off, seconds, 0.1, tokens),
        TierEarnings(StaticTier(3, "ngram"), fixed, seconds, 0.1, tokens),
    )
    return EarningsSnapshot(tiers=tiers)


def test_differences_are_of_the_tier_that_is_best_now() -> None:
    """It may have been another one before."""
    before, now = snapshot(100, 1.0, 1.5, 2.0), snapshot(300, 2.0, 4.5, 3.0)
    new = dict(zip(COMPARED_COLUMNS, compared(before, now), strict=True))
    assert new == {
        "tokens": 200, "seconds": 1.0, "off_seconds": 3.0, "best_compared_seconds": 1.0, "best_seconds": 1.0
    }  # fmt: skip
    assert compared(EarningsSnapshot(), EarningsSnapshot()) == [0.0] * 5


def test_sums_name_the_best_fixed_depth_and_say_how_sure_they_are() -> None:
    told = json.loads(json.dumps(earned(snapshot(300, 2.0, 4.5, 3.0)), allow_nan=False))
    assert told["best_static"] == {"depth": 3, "drafter": "ngram"}
    assert told["speedup"] == {"value": 2.25, "low": 2.2, "high": 2.3}
    assert told["regret"]["value"] == pytest.approx(-0.3333)
    nothing = earned(EarningsSnapshot())
    assert (nothing["speedup"], nothing["best_static"], nothing["regret"]) == (None, None, None)


def test_the_feed_puts_estimates_into_the_second_they_came_in() -> None:
    """Each token once, whether or not rounds came in between."""
    told, clock = [EarningsSnapshot()], Clock()
    feed = LiveFeed(lambda: told[0], clock)
    feed.started(request("a"))
    feed.emit(round_of("a"))
    assert feed.changes().seconds[0]["compared"] is None
    for tokens in (100, 250):
        told[0] = snapshot(tokens, tokens / 100, tokens / 50, tokens / 80)
        feed.estimate()
        feed.changes()
    assert feed.snapshot()["seconds"][0]["compared"] == [250, 2.5, 5.0, 2.5, 3.125]
    assert feed.changes().empty
    assert feed.snapshot()["earnings"]["speedup"]["value"] == 2.0

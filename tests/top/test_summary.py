"""Figures of a server: ratios of sums over the seconds that are meant."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adaptspec.decision import Reason
from adaptspec.top.feed import LiveState
from adaptspec.top.summary import summary
from tests.top.recorded import recorded


def empty() -> dict[str, Any]:
    """A server that nobody has asked anything."""
    snapshot, _ = recorded()
    return {**snapshot, "seconds": [], "running": [], "recent": [], "earnings": None}


def second(at: int, **told: Any) -> dict[str, Any]:
    plain = {"rounds": 0, "rows": 0, "emitted": 0, "drafted": 0, "accepted": 0, "prefill_tokens": 0, "busy": 0.0}
    plain["nodes"] = told.get("drafted", 0)
    return {
        **plain,
        "at": at,
        "ended": 0,
        "depths": [],
        "reasons": [],
        "off": [],
        "drafters": [],
        "tasks": {},
        "compared": None,
        **told,
    }


def test_figures_are_ratios_of_sums() -> None:
    """Speed over ten seconds, shares over sixty; the second that runs is not over."""
    snapshot = {**empty(), "now": 1000.5}
    snapshot["seconds"] = [
        second(905, emitted=9999, depths=[7]),
        second(950, rows=20, emitted=50, drafted=30, accepted=10, depths=[10, 0, 10], drafters=[[10, 30, 10, 30, 10]]),
        second(
            992, rows=30, emitted=100, drafted=20, accepted=20, depths=[25, 5], drafters=[[0] * 5, [5, 20, 20, 20, 20]]
        )
        | {"compared": [100.0, 0.5, 1.0, 0.5, 0.4], "tasks": {"code": [30.0, 5.0, 20.0, 20.0, 100.0, 12.0, 8.0, 20.0]}},
        second(1000, emitted=7777, depths=[7]),
    ]
    told = summary(LiveState.of(snapshot))
    assert told.tokens_per_second == 10.0
    assert told.speedup == 2.0
    assert told.plain_tokens_per_second == 5.0
    assert told.acceptance_length == 1.0 + 30 / 15
    assert told.acceptance_rate == 30 / 50
    assert told.drafting == 15 / 50
    assert told.tiers == {0: 0.7, 1: 0.1, 2: 0.2}
    assert (told.tasks["code"].acceptance_length, told.tasks["code"].entropy) == (5.0, 1.5)


def test_nothing_is_no_number() -> None:
    """Ratios of nothing are unknown, not 0 and not an error."""
    told = summary(LiveState.of(empty()))
    assert told.tokens_per_second == 0.0
    assert (told.speedup, told.acceptance_length, told.drafting, told.tiers, told.tasks) == (None, None, None, {}, {})


def off(**by_reason: int) -> list[int]:
    """Row-rounds of depth 0, as the feed lists them by the code of their reason."""
    counts = [0] * (1 + max(Reason))
    for name, count in by_reason.items():
        counts[Reason[name.upper()]] = count
    return counts


def test_a_server_that_hardly_drafts_says_why() -> None:
    """Over nine tenths of the rounds in which it could have; the most frequent reason is the one that is told."""
    snapshot = {**empty(), "now": 1000.5}
    snapshot["seconds"] = [
        second(930, rows=1000),  # longer ago than a minute
        second(950, rows=50, off=off(guard=30, off=20), ended=120),
        second(990, rows=50, off=off(guard=30, ceiling=11), ended=30),
    ]
    told = summary(LiveState.of(snapshot))
    assert told.requests_ended == 150
    assert told.mostly_off is not None
    assert told.mostly_off.share == pytest.approx(0.91)
    assert told.mostly_off.reason == "guard"
    words = {reason["name"]: reason["words"] for reason in snapshot["reasons"]}
    assert told.mostly_off.words == words["guard"]
    assert json.loads(json.dumps(told.to_json()))["mostly_off"]["reason"] == "guard"


@pytest.mark.parametrize(
    ("rows", "by_reason"),
    [
        (100, {"guard": 90}),  # one round in ten is drafted in
        (15, {"guard": 15}),  # too few to say anything
        (100, {"fixed": 100}),  # the policy is off
        (100, {"request": 100}),  # clients want none
        (100, {"fixed": 50, "request": 40, "off": 10}),  # ten rounds in which it could
        (100, {"fixed": 50, "off": 45}),  # nine of ten of those
    ],
)
def test_where_drafts_are_not_wanted_or_many_there_is_nothing_to_say(rows: int, by_reason: dict[str, int]) -> None:
    snapshot = {**empty(), "now": 1000.5, "seconds": [second(990, rows=rows, off=off(**by_reason))]}
    assert summary(LiveState.of(snapshot)).mostly_off is None

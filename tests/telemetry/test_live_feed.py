"""The live feed says of every request and round what happened, once, and holds a bounded part of it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.telemetry.live_feed import HISTORY_SECONDS, RECENT_REQUESTS, STRIP_ROUNDS, WAITING_ROUNDS, LiveFeed
from adaptspec.types import (
    Completion,
    FinishReason,
    Reason,
    Request,
    RoundRecord,
    SpeculationParams,
    SpeculationStats,
    Timings,
)
from tests.telemetry.test_totals import record


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def request(name: str, task: str | None = "code") -> Request:
    return Request(name, (1, 2, 3), speculation=SpeculationParams("goodput", task))


def completion(name: str) -> Completion:
    stats = SpeculationStats("goodput", 2, 1, 3, 2)
    return Completion(name, "secret text", (7, 8), 3, FinishReason.STOP, stats, Timings(1.0, 2.0, 3.0, 4.0))


def round_of(*names: str, accepted: int = 2) -> RoundRecord:
    one = record([(3, 3, accepted, accepted + 1, Reason.POLICY)] * len(names))
    return replace(one, request_ids=names)


def test_a_request_comes_runs_and_goes() -> None:
    clock = Clock()
    feed = LiveFeed(clock=clock)
    feed.started(request("a"))
    feed.emit(round_of("a"))
    first = feed.changes(strips=True)
    assert [one["id"] for one in first.started] == ["a"]
    assert first.bars == {"a": [(3, 3, 2, 3, 0, int(Reason.POLICY), None)]}
    assert feed.snapshot()["running"][0]["tokens"] == 3
    clock.now += 1.5
    feed.emit(round_of("a"))
    feed.finished(request("a"), completion("a"))
    second = feed.changes(strips=True)
    assert [one["at"] for one in second.seconds] == [1001]
    assert second.finished[0]["finished"] - second.finished[0]["arrived"] == 3.0
    assert feed.changes().empty
    told = feed.snapshot()
    assert told["running"] == []
    assert [one["id"] for one in told["recent"]] == ["a"]
    assert [one["tasks"]["code"][0] for one in told["seconds"]] == [1, 1]


def test_a_request_that_never_ran_is_told_of_once_it_ends() -> None:
    feed = LiveFeed(clock=Clock())
    waited = replace(completion("a"), timings=Timings(1.0, None, None, 4.0), finish=FinishReason.ABORT)
    feed.finished(request("a"), waited)
    assert feed.changes().finished[0]["admitted"] is None


def test_every_request_that_ends_is_counted_in_its_second() -> None:
    """More end in a minute than are kept: who counts the kept ones says 100 for ever."""
    clock, count = Clock(), 3 * RECENT_REQUESTS
    feed = LiveFeed(clock=clock)
    for number in range(count):
        clock.now = 1000.0 + number / 50
        feed.finished(request(str(number)), completion(str(number)))
        if number % 7 == 0:
            feed.emit(round_of("other"))
        if number % 40 == 0:
            feed.changes()
    feed.changes()
    told = feed.snapshot()
    assert [second["ended"] for second in told["seconds"]] == [50] * (count // 50)
    assert len(told["recent"]) == RECENT_REQUESTS


def test_it_says_no_text_and_no_token_ids() -> None:
    feed = LiveFeed(clock=Clock())
    feed.started(request("a"))
    feed.emit(round_of("a"))
    feed.finished(request("a"), completion("a"))
    said = json.dumps([feed.changes(strips=True).to_json(), feed.snapshot()], allow_nan=False)
    assert "secret" not in said
    assert "[1, 2, 3]" not in said
    assert "[7, 8]" not in said


def test_it_stays_small_whatever_happens() -> None:
    clock = Clock()
    feed = LiveFeed(clock=clock)
    feed.started(request("long"))
    for second in range(HISTORY_SECONDS + 20):
        clock.now = 1000.0 + second
        feed.emit(round_of("long"))
        feed.finished(request(str(second)), completion(str(second)))
        feed.changes()
    told = feed.snapshot()
    assert len(told["seconds"]) == HISTORY_SECONDS
    assert len(told["recent"]) == RECENT_REQUESTS
    assert len(told["running"][0]["rounds"]) == STRIP_ROUNDS


def test_rounds_that_nobody_reads_are_counted_and_dropped_but_no_request_is() -> None:
    feed = LiveFeed(clock=Clock())
    feed.started(request("a"))
    for _ in range(WAITING_ROUNDS + 10):
        feed.emit(round_of("a"))
    feed.finished(request("a"), completion("a"))
    changes = feed.changes()
    assert changes.missed == feed.missed == 11  # the request itself takes a place, too
    assert len(changes.finished) == 1
    feed.emit(round_of("a"))
    assert feed.changes().missed == 11


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.booleans()), max_size=60))
def test_what_updates_say_adds_up_to_the_snapshot(steps: list[tuple[str, int, bool]]) -> None:
    """However reading is cut into updates, a client that follows them holds what a new one is told."""
    clock, running = Clock(), set[str]()
    feed = LiveFeed(clock=clock)
    seconds: dict[int, Any] = {}
    bars: dict[str, list[Any]] = {}

    def follow() -> None:
        changes = feed.changes(strips=True)
        bars.update({one["id"]: [] for one in changes.started})
        seconds.update({one["at"]: one for one in changes.seconds})
        for name, more in changes.bars.items():
            bars[name] += more
        for one in changes.finished:
            del bars[one["id"]]

    for number, (letter, accepted, read) in enumerate(steps):
        clock.now += 0.4
        name = next((one for one in running if one.startswith(letter)), None)
        if name is None:
            running.add(f"{letter}{number}")
            feed.started(request(f"{letter}{number}"))
        elif accepted == 0:
            running.remove(name)
            feed.finished(request(name), completion(name))
        else:
            feed.emit(round_of(*sorted(running), accepted=accepted))
        if read:
            follow()
    follow()
    told = feed.snapshot()
    assert told["seconds"] == list(seconds.values())
    assert {one["id"]: one["rounds"] for one in told["running"]} == bars

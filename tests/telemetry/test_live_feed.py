"""The live feed says of every request and round what happened, once, and holds a bounded part of it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.decision import Reason
from adaptspec.telemetry.live_feed import (
    HISTORY_SECONDS,
    RECENT_SECONDS,
    STRIP_COLUMNS,
    STRIP_ROUNDS,
    WAITING_ROUNDS,
    Changes,
    LiveFeed,
)
from adaptspec.telemetry.requests import ENDED_REQUESTS, RequestLog
from adaptspec.telemetry.stream import EventStream
from tests.control.helpers import record
from tests.telemetry.rounds import ManualClock, completion, drafting_round, learned_costs, request, round_of


def feeding(clock: ManualClock | None = None) -> tuple[EventStream, LiveFeed]:
    """A feed that a client follows."""
    stream, log = EventStream(interval=3600.0, clock=clock or ManualClock()), RequestLog()
    feed = LiveFeed(stream, log)
    for sink in (log, feed):
        stream.add(sink)
    stream.start(learned_costs(), ("draft-model", "ngram"))
    feed.following = True
    return stream, feed


def flushed(feed: LiveFeed) -> Changes:
    feed.flush()
    return feed.changes()


def test_every_request_that_ends_is_counted_in_its_second() -> None:
    """More end in a minute than are kept."""
    clock, count = ManualClock(), 3 * ENDED_REQUESTS
    stream, feed = feeding(clock)
    for number in range(count):
        clock.at = 1000.0 + number / 50
        stream.finished(request(str(number)), completion(str(number)))
        if number % 7 == 0:
            stream.emit(drafting_round("other"))
        if number % 40 == 0:
            flushed(feed)
    flushed(feed)
    snapshot = feed.snapshot()
    assert [second["finished"] for second in snapshot["seconds"]] == [50] * (count // 50)
    assert len(snapshot["recent"]) == ENDED_REQUESTS
    assert snapshot["summary"]["total"]["finished"] == count


def test_it_has_no_text_and_no_token_ids() -> None:
    stream, feed = feeding()
    stream.started(request("a"))
    stream.emit(drafting_round("a"))
    stream.finished(request("a"), completion("a"))
    said = json.dumps([vars(flushed(feed)), feed.snapshot(), feed.request("a", 2000.0)], allow_nan=False)
    assert "secret" not in said
    assert "[1, 2, 3]" not in said
    assert "[7, 8]" not in said


def test_a_request_is_followed_to_its_end() -> None:
    clock = ManualClock()
    stream, feed = feeding(clock)
    stream.started(request("a"))
    changes = flushed(feed)
    (started,) = changes.started
    assert (started["id"], started["state"], started["admitted"], started["tokens"]) == ("a", "running", 1000.0, 0)
    assert started["finish"] is started["first_token"] is None
    stream.emit(replace(record([3], [2]), request_ids=("a",)))
    changes = flushed(feed)
    assert changes.rounds == {"a": [[0, 3, 3, 2, 3, 0, 0, 0.8]]}
    figures = changes.running["a"]
    assert (figures["tokens"], figures["drafts"], figures["drafted"], figures["accepted"]) == (4, 1, 3, 2)
    assert figures["speedup"]["low"] < figures["speedup"]["value"] < figures["speedup"]["high"]
    stream.finished(request("a"), completion("a", cached_tokens=2))
    (finished,) = flushed(feed).finished
    (recent,) = feed.snapshot()["recent"]
    assert (finished["state"], finished["finish"], finished["tokens"], finished["cached_tokens"]) == (
        "ended",
        "stop",
        2,
        2,
    )
    assert (finished["arrived"], finished["first_token"], finished["finished"]) == (1.0, 3.0, 4.0)
    assert finished["speedup"] == figures["speedup"]
    assert recent == finished | {"rounds": [[0, 3, 3, 2, 3, 0, 0, 0.8]]}


def test_what_is_unknown_of_drafts_is_null() -> None:
    """Lookups have no entropy, and a row may draft less than others of its batch."""
    stream, feed = feeding()
    for name in "abc":
        stream.started(request(name))
    one = drafting_round(*"abc")
    stream.emit(replace(one, entropy=np.array([[0.5, 1.0], [0.25, np.nan], [np.nan, np.nan]])))
    changes = flushed(feed)
    json.dumps([vars(changes), feed.snapshot(), feed.request("c", 0.0)], allow_nan=False)
    entropy = STRIP_COLUMNS.index("entropy")
    assert [changes.rounds[name][0][entropy] for name in "abc"] == [0.75, 0.25, None]


def test_figures_are_of_the_last_seconds_and_since_the_start() -> None:
    clock = ManualClock()
    stream, feed = feeding(clock)
    stream.emit(round_of([(0, 0, 0, 1, Reason.OFF)]))
    clock.at += RECENT_SECONDS
    stream.emit(drafting_round("a"))
    summary = flushed(feed).summary
    assert summary == feed.snapshot()["summary"]
    assert (summary["recent"]["rows"], summary["total"]["rows"]) == (1, 2)
    assert summary["recent"]["drafters"]["draft-model"]["kept"] == 2
    clock.at += RECENT_SECONDS
    summary = flushed(feed).summary
    assert summary["recent"] is None, "without an event, too"
    assert summary["total"]["rows"] == 2


def test_before_the_first_round_there_are_no_figures() -> None:
    _, feed = feeding()
    assert flushed(feed).summary == {"recent": None, "total": None}


def test_seconds_are_split_by_task_and_drafter() -> None:
    clock = ManualClock()
    stream, feed = feeding(clock)
    stream.started(request("a", task="code"))
    stream.started(request("b", task=None))
    stream.emit(round_of([(3, 3, 2, 3, Reason.POLICY), (0, 0, 0, 1, Reason.OFF)], names=("a", "b")))
    clock.at += 1.0
    stream.emit(replace(drafting_round("a"), drafter=np.array([1])))
    first, second = flushed(feed).seconds
    assert (first["at"], first["rounds"], first["rows"], first["emitted"], first["busy"]) == (1000, 1, 2, 4, 1.0)
    assert (first["depths"], first["reasons"]) == ({"0": 1, "3": 1}, {"policy": 1, "off": 1})
    assert {task: one["emitted"] for task, one in first["tasks"].items()} == {"code": 3, "other": 1}
    assert set(second["drafters"]) == {"ngram"}
    assert second["drafters"]["ngram"] == {"drafts": 1, "drafted": 3, "accepted": 2, "nodes": 3, "kept": 2}


def test_a_clock_that_is_set_back_adds_to_the_newest_second() -> None:
    clock = ManualClock()
    stream, feed = feeding(clock)
    stream.emit(drafting_round("a"))
    clock.at -= 100.0
    stream.emit(drafting_round("a"))
    flushed(feed)
    stream.emit(drafting_round("a"))
    flushed(feed)
    seconds = feed.snapshot()["seconds"]
    assert sum(one["rounds"] for one in seconds) == 3
    assert [one["at"] for one in seconds] == sorted(one["at"] for one in seconds)


def test_it_stays_small_whatever_happens() -> None:
    clock = ManualClock()
    stream, feed = feeding(clock)
    stream.started(request("long"))
    for second in range(HISTORY_SECONDS + 20):
        clock.at = 1000.0 + second
        stream.emit(drafting_round("long"))
        stream.finished(request(str(second)), completion(str(second)))
        flushed(feed)
    snapshot = feed.snapshot()
    assert len(snapshot["seconds"]) == HISTORY_SECONDS
    assert len(snapshot["recent"]) == ENDED_REQUESTS
    assert len(snapshot["running"][0]["rounds"]) == STRIP_ROUNDS


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.booleans()), max_size=60))
def test_updates_add_up_to_the_snapshot(steps: list[tuple[str, int, bool]]) -> None:
    """However reading is cut into updates, a client that follows them has what a new one gets."""
    clock, running = ManualClock(), set[str]()
    stream, feed = feeding(clock)
    seconds: dict[int, Any] = {}
    requests: dict[str, Any] = {}

    def follow() -> None:
        changes = flushed(feed)
        requests.update({one["id"]: one for one in changes.started})
        seconds.update({one["at"]: one for one in changes.seconds})
        for name, more in changes.rounds.items():
            requests[name]["rounds"] += more
        for name, figures in changes.running.items():
            requests[name] |= figures
        for one in changes.finished:
            del requests[one["id"]]

    for number, (letter, accepted, read) in enumerate(steps):
        clock.at += 0.4
        name = next((one for one in running if one.startswith(letter)), None)
        if name is None:
            running.add(f"{letter}{number}")
            stream.started(request(f"{letter}{number}"))
        elif accepted == 0:
            running.remove(name)
            stream.finished(request(name), completion(name))
        else:
            stream.emit(drafting_round(*sorted(running), accepted=accepted))
        if read:
            follow()
    follow()
    snapshot = feed.snapshot()
    assert [one["at"] for one in snapshot["seconds"]] == list(seconds)
    assert snapshot["seconds"] == list(seconds.values())
    assert {one["id"]: one for one in snapshot["running"]} == requests


def test_rounds_beyond_what_is_kept_are_summed_but_no_request_is_lost() -> None:
    stream, feed = feeding()
    stream.started(request("a"))
    for _ in range(WAITING_ROUNDS + 10):
        stream.emit(drafting_round("a"))
    stream.finished(request("a"), completion("a"))
    changes = flushed(feed)
    assert changes.missed_rounds == feed.missed_rounds == 10
    assert sum(map(len, changes.rounds.values())) == WAITING_ROUNDS
    assert len(changes.finished) == 1
    assert changes.summary["total"]["rounds"] == WAITING_ROUNDS + 10
    stream.emit(drafting_round("a"))
    assert flushed(feed).missed_rounds == 10


def test_one_request_in_detail() -> None:
    clock = ManualClock()
    stream, feed = feeding(clock)
    stream.started(request("a"))
    clock.at += 2.0
    stream.emit(replace(record([3], [2]), request_ids=("a",)))
    feed.flush()
    running = feed.request("a", 1010.0)
    assert running is not None
    assert (running["phases"][0]["name"], running["phases"][0]["start"]) == ("prefill", 1000.0)
    assert running["phases"][-1]["name"] == "decode"
    assert sum(one["seconds"] for one in running["phases"]) == 10.0
    values = dict(zip(running["columns"], running["rounds"][0], strict=True))
    assert (values["ended"], values["drafted"], values["accepted"], values["expected"]) == (1002.0, 3, 2, None)
    stream.finished(request("a"), completion("a"))
    feed.flush()
    ended = feed.request("a", 1010.0)
    assert ended is not None
    assert [(one["name"], one["start"], one["seconds"]) for one in ended["phases"]] == [
        ("queue", 1.0, 1.0),
        ("prefill", 2.0, 1.0),
        ("decode", 3.0, 1.0),
    ]
    assert ended["sentence"].startswith(
        "2 tokens in 2 passes (2 saved). 1 of 1 round drafted, most often draft-model at "
    )
    assert (len(ended["rounds"]), ended["omitted_rounds"], ended["request"]["state"]) == (1, 0, "ended")
    assert feed.request("b", 1010.0) is None

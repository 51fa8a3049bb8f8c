"""The live feed says of every request and round what happened, once, and holds a bounded part of it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.control.tasks import OTHER
from adaptspec.decision import Reason
from adaptspec.request import Request, SpeculationParams
from adaptspec.results import Completion, FinishReason, SpeculationStats, Timings
from adaptspec.rounds import RoundRecord
from adaptspec.telemetry.live_feed import HISTORY_SECONDS, STRIP_ROUNDS, WAITING_ROUNDS, Changes, LiveFeed, Second
from adaptspec.telemetry.live_schema import DrafterSums, TaskSums
from adaptspec.telemetry.request_record import RequestRecord
from adaptspec.telemetry.request_store import RECENT_REQUESTS, RequestStore, RoundEnded
from tests.telemetry.feeding import SetClock, made
from tests.telemetry.test_totals import ROUNDS, record
from tests.trees import forests


def feeding(clock: SetClock | None = None) -> tuple[RequestStore, LiveFeed]:
    """A feed that somebody follows."""
    store, feed = made(LiveFeed, rows=64, clock=clock or SetClock())
    feed.following = True
    return store, feed


def settled(feed: LiveFeed) -> Changes:
    feed.settle()
    return feed.changes()


def request(name: str, task: str | None = "code") -> Request:
    return Request(name, (1, 2, 3), speculation=SpeculationParams("goodput", task))


def completion(name: str) -> Completion:
    stats = SpeculationStats("goodput", 2, 1, 3, 2)
    return Completion(name, "secret text", (7, 8), 3, FinishReason.STOP, stats, Timings(1.0, 2.0, 3.0, 4.0))


def round_of(*names: str, accepted: int = 2) -> RoundRecord:
    one = record([(3, 3, accepted, accepted + 1, Reason.POLICY)] * len(names))
    return replace(one, request_ids=names)


def test_every_request_that_ends_is_counted_in_its_second() -> None:
    """More end in a minute than are kept: who counts the kept ones says 100 for ever."""
    clock, count = SetClock(), 3 * RECENT_REQUESTS
    store, feed = feeding(clock)
    for number in range(count):
        clock.at = 1000.0 + number / 50
        store.finished(request(str(number)), completion(str(number)))
        if number % 7 == 0:
            store.emit(round_of("other"))
        if number % 40 == 0:
            settled(feed)
    settled(feed)
    told = feed.snapshot()
    assert [second["ended"] for second in told["seconds"]] == [50] * (count // 50)
    assert len(told["recent"]) == RECENT_REQUESTS


def test_it_says_no_text_and_no_token_ids() -> None:
    store, feed = feeding()
    store.started(request("a"))
    store.emit(round_of("a"))
    store.finished(request("a"), completion("a"))
    said = json.dumps([settled(feed).__dict__, feed.snapshot()], allow_nan=False)
    assert "secret" not in said
    assert "[1, 2, 3]" not in said
    assert "[7, 8]" not in said


def test_an_ended_request_says_how_much_of_its_prompt_was_cached() -> None:
    store, feed = feeding()
    store.started(request("a"))
    store.finished(request("a"), replace(completion("a"), cached_tokens=2))
    (went,) = settled(feed).finished
    (recent,) = feed.snapshot()["recent"]
    for told in (went, recent):
        assert (told["prompt_tokens"], told["cached_tokens"]) == (3, 2)


def test_what_is_not_known_of_drafts_is_null() -> None:
    """Lookups say no entropy, and a row may draft less than its neighbour: a page reads no NaN in JSON."""
    store, feed = feeding()
    for name in "abc":
        store.started(request(name))
    store.emit(replace(round_of(*"abc"), entropy=np.array([[0.5, 1.0], [0.25, np.nan], [np.nan, np.nan]])))
    json.dumps([changes := settled(feed).__dict__, feed.snapshot()], allow_nan=False)
    assert [[bar.entropy for bar in changes["rounds"][name]] for name in "abc"] == [[0.75], [0.25], [None]]
    (task,) = (TaskSums._make(sums) for sums in changes["seconds"][0]["tasks"].values())
    assert (task.entropy_sum, task.entropy_count) == (1.75, 3)


def test_it_stays_small_whatever_happens() -> None:
    clock = SetClock()
    store, feed = feeding(clock)
    store.started(request("long"))
    for second in range(HISTORY_SECONDS + 20):
        clock.at = 1000.0 + second
        store.emit(round_of("long"))
        store.finished(request(str(second)), completion(str(second)))
        settled(feed)
    told = feed.snapshot()
    assert len(told["seconds"]) == HISTORY_SECONDS
    assert len(told["recent"]) == RECENT_REQUESTS
    assert len(told["running"][0]["rounds"]) == STRIP_ROUNDS


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.booleans()), max_size=60))
def test_what_updates_say_adds_up_to_the_snapshot(steps: list[tuple[str, int, bool]]) -> None:
    """However reading is cut into updates, a client that follows them holds what a new one is told."""
    clock, running = SetClock(), set[str]()
    store, feed = feeding(clock)
    seconds: dict[int, Any] = {}
    bars: dict[str, list[Any]] = {}

    def follow() -> None:
        changes = settled(feed)
        bars.update({one["id"]: [] for one in changes.started})
        seconds.update({one["at"]: one for one in changes.seconds})
        for name, more in changes.rounds.items():
            bars[name] += more
        for one in changes.finished:
            del bars[one["id"]]

    for number, (letter, accepted, read) in enumerate(steps):
        clock.at += 0.4
        name = next((one for one in running if one.startswith(letter)), None)
        if name is None:
            running.add(f"{letter}{number}")
            store.started(request(f"{letter}{number}"))
        elif accepted == 0:
            running.remove(name)
            store.finished(request(name), completion(name))
        else:
            store.emit(round_of(*sorted(running), accepted=accepted))
        if read:
            follow()
    follow()
    told = feed.snapshot()
    assert told["seconds"] == list(seconds.values())
    assert {one["id"]: one["rounds"] for one in told["running"]} == bars


def drawn(rounds: list[Any], drafters: int) -> list[RoundRecord]:
    """Rounds with drafters and entropies; of request n the task is told for even n."""
    rng, made = np.random.default_rng(len(rounds)), []
    for number, rows in enumerate(rounds):
        one = record(rows, number)
        entropy = np.full((len(rows), int(one.drafted.max(initial=0))), np.nan)
        for i, count in enumerate(one.drafted.tolist()):
            entropy[i, :count] = rng.random(count)
        made.append(replace(one, entropy=entropy, drafter=rng.integers(0, drafters, len(rows))))
    return made


TASKS = {"0": "code", "2": "story", "4": None}
RUNNING = {name: RequestRecord(request(name, task), 0, 0.0) for name, task in TASKS.items()}


@settings(max_examples=60, deadline=None)
@given(ROUNDS.filter(bool), st.integers(1, 3), st.integers(1, 5))
def test_seconds_are_the_sums_of_their_rows(rounds: list[Any], drafters: int, lot: int) -> None:
    records = drawn(rounds, drafters)
    second = Second(7)
    for start in range(0, len(records), lot):
        part = records[start : start + lot]
        second.add([RoundEnded(0.0, one, tuple(map(RUNNING.get, one.request_ids))) for one in part])
    rows = [
        (
            TASKS.get(name) or OTHER,
            int(one.drafted[i]),
            min(int(one.accepted[i]), int(one.emitted[i])),
            int(one.emitted[i]),
            float(np.nansum(one.entropy[i])),
            int(one.drafter[i]),
        )
        for one in records
        for i, name in enumerate(one.request_ids)
    ]
    told = second.to_json()
    assert (told["rounds"], told["rows"]) == (len(records), len(rows))
    assert told["busy"] == pytest.approx(float(len(records)))
    assert (told["drafted"], told["accepted"]) == (sum(row[1] for row in rows), sum(row[2] for row in rows))
    assert told["emitted"] == sum(row[3] for row in rows)
    assert sum(told["depths"]) == sum(told["reasons"]) == len(rows)
    without = [int(one.reasons[i]) for one in records for i in range(len(one.depths)) if one.depths[i] == 0]
    assert told["off"] == np.bincount(without, minlength=len(second.off)).tolist()
    for which, (used, drafted, accepted, nodes, kept) in enumerate(told["drafters"]):
        own = [row for row in rows if row[5] == which and row[1]]
        assert (used, drafted, accepted) == (len(own), sum(row[1] for row in own), sum(row[2] for row in own))
        assert (nodes, kept) == (drafted, accepted)
    assert set(second.tasks) == {row[0] for row in rows}
    for task, sums in second.tasks.items():
        own = [row for row in rows if row[0] == task]
        told = TaskSums._make(sums.tolist())._asdict()
        assert told["rounds"] == len(own)
        assert told["drafting"] == sum(row[1] > 0 for row in own)
        assert told["accepted"] == sum(row[2] for row in own)
        assert told["nodes"] == sum(row[1] for row in own)
        assert told["emitted"] == sum(row[3] for row in own)
        assert told["entropy_sum"] == pytest.approx(sum(row[4] for row in own))
        assert told["entropy_count"] == sum(row[1] for row in own)


@settings(max_examples=60, deadline=None)
@given(st.lists(forests(), min_size=1, max_size=4))
def test_nodes_are_counted_beside_depths(records: list[RoundRecord]) -> None:
    """By second, task and proposer alike."""
    second = Second(7)
    second.add([RoundEnded(0.0, one, (None,) * len(one.rows)) for one in records])
    told = second.to_json()
    nodes = sum(int(one.nodes.sum()) for one in records)
    drafters = [DrafterSums._make(own) for own in told["drafters"]]
    assert told["nodes"] == nodes == sum(one.nodes for one in drafters)
    assert told["accepted"] == sum(one.accepted for one in drafters) == sum(one.kept for one in drafters)
    assert told["accepted"] <= told["drafted"] == sum(one.drafted for one in drafters) <= nodes
    assert TaskSums._make(told["tasks"][OTHER]).nodes == nodes


def test_rounds_beyond_what_is_kept_are_counted_but_no_request_is_lost() -> None:
    store, feed = feeding()
    store.started(request("a"))
    for _ in range(WAITING_ROUNDS + 10):
        store.emit(round_of("a"))
    store.finished(request("a"), completion("a"))
    changes = settled(feed)
    assert changes.missed_rounds == feed.missed == 10
    assert sum(map(len, changes.rounds.values())) == WAITING_ROUNDS
    assert len(changes.finished) == 1
    store.emit(round_of("a"))
    assert settled(feed).missed_rounds == 10

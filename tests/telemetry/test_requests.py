"""The log: every request has its own rounds, sums and events, and the log stays small."""

from __future__ import annotations

import gc
import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.decision import Expected, Reason
from adaptspec.results import FinishReason
from adaptspec.telemetry.events import EventBatch, PolicyReloaded
from adaptspec.telemetry.requests import ENDED_REQUESTS, KEPT_NOTES, KEPT_ROUNDS, LoggedRequest, RequestLog
from adaptspec.telemetry.stream import EventStream
from tests.control.helpers import record
from tests.telemetry.rounds import (
    ManualClock,
    completion,
    drafting_round,
    learned_costs,
    request,
    round_of,
    started_stream,
)


def logging(clock: ManualClock | None = None) -> tuple[EventStream, RequestLog]:
    log = RequestLog()
    return started_stream(log, clock=clock), log


def found(log: RequestLog, name: str) -> LoggedRequest:
    logged = log.find(name)
    assert logged is not None
    return logged


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.sampled_from("abc"), unique=True, min_size=1), max_size=30), st.integers(1, 7))
def test_each_request_has_its_own_rounds(batches: list[list[str]], every: int) -> None:
    """However batches of the engine change and events are cut into batches of the stream."""
    stream, log = logging()
    for name in "abc":
        stream.started(request(name))
    for number, names in enumerate(batches):
        stream.emit(round_of([(9, number % 9, 0, 1, Reason.POLICY)] * len(names), number, tuple(names)))
        if number % every == 0:
            stream.flush()
    stream.flush()
    for name in "abc":
        logged, own = found(log, name), [number for number, names in enumerate(batches) if name in names]
        assert [one.number for one in logged.rounds] == own
        assert [one.drafted for one in logged.rounds] == [number % 9 for number in own]
        assert logged.sums.drafted == sum(number % 9 for number in own)
        assert logged.sums.rows == len(own)
        stays = [name in names for names in batches]
        returns = sum(
            now and not before for before, now in itertools.pairwise(stays[stays.index(True) :] if own else [])
        )
        events = [one.name for one in logged.events()]
        assert events.count("preempt") == events.count("resume") == min(returns, KEPT_NOTES // 2)


def test_a_round_says_what_was_decided_and_what_came_of_it() -> None:
    clock = ManualClock()
    stream, log = logging(clock)
    stream.started(request("a"))
    one = record([3], [2], confidence=0.75)
    stream.emit(replace(one, request_ids=("a",), emitted=np.array([2]), expected=Expected(9.0, np.array([1.5]))))
    stream.flush()
    (seen,) = found(log, "a").rounds
    assert (seen.depth, seen.drafted, seen.accepted, seen.emitted, seen.nodes, seen.context) == (3, 3, 2, 2, 3, 100)
    assert (seen.confidence, seen.entropy, seen.expected) == (0.75, 0.75, 1.5)
    assert (seen.ended, seen.seconds, seen.rows) == (1000.0, one.timing.total, 1)


def test_accepted_tokens_are_those_that_were_emitted() -> None:
    stream, log = logging()
    stream.started(request("a"))
    stream.emit(round_of([(3, 3, 3, 1, Reason.POLICY)], names=("a",)))
    stream.flush()
    assert found(log, "a").rounds[0].accepted == found(log, "a").sums.accepted == 1


def test_tokens_count_the_one_that_comes_with_the_prompt() -> None:
    stream, log = logging()
    stream.started(request("a"))
    stream.flush()
    assert found(log, "a").tokens == 0
    stream.emit(drafting_round("a"))
    stream.flush()
    assert found(log, "a").tokens == 4
    stream.finished(request("a"), completion("a"))
    stream.flush()
    assert found(log, "a").tokens == 2, "those of the answer"


def test_the_end_of_a_request_comes_with_its_log() -> None:
    """Sinks after the log get it, whether the request was admitted or not; it does not change any more."""
    ended: list[LoggedRequest | None] = []

    class Reader:
        def handle(self, batch: EventBatch) -> None:
            ended.extend(one.logged for one in batch.finished)

        def close(self, timeout: float) -> None: ...

    stream, log = logging()
    stream.add(Reader())
    stream.started(request("a"))
    stream.emit(drafting_round("a"))
    stream.finished(request("a"), completion("a"))
    stream.finished(request("refused"), completion("refused"))
    stream.emit(drafting_round("a"))
    stream.flush()
    assert [one.sums.rows for one in ended if one is not None] == [1, 0]
    assert [one.request.id for one in log.ended] == ["a", "refused"]
    assert not log.running


def test_rare_events_are_in_order() -> None:
    clock = ManualClock()
    stream, log = logging(clock)
    stream.started(request("a", policy="goodput"))
    stream.started(request("b", policy="other"))
    rows = [
        (3, 3, 1, 2, Reason.POLICY),
        (0, 0, 0, 1, Reason.GUARD),
        (2, 2, 1, 2, Reason.PROBE),
        (0, 0, 0, 1, Reason.OFF),
    ]
    for number, row in enumerate(rows):
        clock.at += 10.0
        stream.emit(round_of([row], number, ("a",)))
    clock.at += 10.0
    stream.note(PolicyReloaded("goodput"))
    stream.flush()
    events = found(log, "a").events()
    assert [(one.when, one.name) for one in events] == [
        (1019.0, "off"),
        (1029.0, "probe"),
        (1029.0, "switch"),
        (1039.0, "off"),
        (1050.0, "reload"),
    ]
    assert events[2].detail == "to 0 at depth 2"
    assert found(log, "b").events() == []


def test_a_request_that_fails_was_not_preempted() -> None:
    """A failed row is left out of its last round, before the request ends."""
    stream, log = logging()
    for name in "ab":
        stream.started(request(name))
    stream.emit(round_of([(0, 0, 0, 1, Reason.POLICY)] * 2, 0, ("a", "b")))
    stream.emit(round_of([(0, 0, 0, 1, Reason.POLICY)], 1, ("a",)))
    stream.finished(request("b"), completion("b", finish=FinishReason.ERROR, error="not finite"))
    stream.flush()
    assert found(log, "b").events() == []


def test_a_request_that_was_crowded_out_may_be_in_rounds_again() -> None:
    log = RequestLog(max_running=1)
    stream = started_stream(log)
    stream.started(request("a"))
    stream.emit(drafting_round("a"))
    stream.emit(drafting_round("b"))
    stream.started(request("b"))
    stream.emit(drafting_round("a", "b"))
    stream.flush()
    assert stream.lost(log) == 0
    assert found(log, "b").sums.rows == 1


def test_it_stays_small_whatever_happens() -> None:
    """Ends that were lost, requests and rounds without an end."""
    log = RequestLog(max_running=10)
    stream = started_stream(log)
    for number in range(50):
        stream.started(request(str(number)))
    for _ in range(KEPT_ROUNDS + 5):
        stream.emit(drafting_round("49"))
    stream.flush()
    assert list(log.running) == [str(number) for number in range(40, 50)]
    assert (len(found(log, "49").rounds), found(log, "49").sums.rows) == (KEPT_ROUNDS, KEPT_ROUNDS + 5)
    for number in range(ENDED_REQUESTS + 5):
        stream.finished(request(f"end {number}"), completion(f"end {number}"))
    stream.flush()
    assert len(log.ended) == ENDED_REQUESTS
    assert log.find("end 0") is None


def test_kept_rounds_are_nothing_to_the_garbage_collector() -> None:
    """A long pause for all requests would follow if it looked through hundreds of rounds of each of them."""
    stream, log = logging()
    stream.started(request("a"))
    for _ in range(10):
        stream.emit(replace(record([3], [2]), request_ids=("a",)))
    stream.flush()
    gc.collect()
    kept = found(log, "a").values
    assert len(kept) == 10
    assert not any(map(gc.is_tracked, kept))


@pytest.mark.parametrize("prefill", [0, 7])
def test_the_speedup_is_that_of_its_own_tokens(prefill: int) -> None:
    """In one batch, the request whose drafts are accepted is sped up, and one that drafts in vain is slowed down."""
    log, costs = RequestLog(), learned_costs()
    stream = EventStream([log], interval=3600.0)
    stream.start(costs, ("draft-model",))
    for name in "ab":
        stream.started(request(name))
    for _ in range(20):
        stream.emit(replace(record([3, 3], [3, 0], prefill=prefill), request_ids=("a", "b")))
    stream.flush()
    running = [log.speedup(found(log, name)) for name in "ab"]
    values: list[Any] = [one.value for one in running if one is not None]
    assert values[0] == pytest.approx(4 * values[1])
    assert values[0] > 1.0 > values[1]
    stream.finished(request("a"), completion("a"))
    stream.flush()
    assert log.speedup(found(log, "a")) == running[0], "it stays what it was"


def test_without_drafts_the_speedup_is_one() -> None:
    log = RequestLog()
    stream = EventStream([log], interval=3600.0)
    stream.start(learned_costs(), ("draft-model",))
    stream.started(request("a"))
    for _ in range(20):
        stream.emit(replace(record([0], [0]), request_ids=("a",)))
    stream.flush()
    gain = log.speedup(found(log, "a"))
    assert gain is not None
    assert (gain.value, gain.low, gain.high) == pytest.approx((1.0, 1.0, 1.0))

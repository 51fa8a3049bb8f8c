"""Events reach sinks in order; queues are bounded; a sink that fails or hangs harms nothing else."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from adaptspec.telemetry.events import EventBatch, Note, RequestFinished, RequestStarted, RoundEnded
from adaptspec.telemetry.stream import BackgroundSink, BoundedQueue, EventStream
from tests.telemetry.rounds import ManualClock, completion, drafting_round, request, started_stream


class Recorder:
    """A sink that keeps its batches."""

    def __init__(self) -> None:
        self.batches: list[EventBatch] = []
        self.closed = False

    def handle(self, batch: EventBatch) -> None:
        self.batches.append(batch)

    def close(self, timeout: float) -> None:
        assert timeout > 0
        self.closed = True

    @property
    def events(self) -> list[Any]:
        return [event for batch in self.batches for event in batch.events]


class Hanging(Recorder):
    """A sink that hangs in its first batch until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.released = threading.Event(), threading.Event()

    def handle(self, batch: EventBatch) -> None:
        self.entered.set()
        self.released.wait()
        super().handle(batch)


class Broken(Recorder):
    def handle(self, batch: EventBatch) -> None:
        raise ValueError("a fuse has blown")


def test_events_come_in_order_with_their_times() -> None:
    sink, clock = Recorder(), ManualClock()
    stream = started_stream(sink, clock=clock)
    stream.started(request("a"))
    clock.at += 1.0
    stream.emit(drafting_round("a"))
    stream.note("anything")
    stream.finished(request("a"), completion("a"))
    assert stream.flush()
    assert [type(event) for event in sink.events] == [RequestStarted, RoundEnded, Note, RequestFinished]
    assert [event.when for event in sink.events] == [1000.0, 1001.0, 1001.0, 1001.0]
    (batch,) = sink.batches
    assert [one.record.request_ids for one in batch.rounds] == [("a",)]
    assert [one.completion.request_id for one in batch.finished] == ["a"]


def test_events_before_the_start_wait_for_it() -> None:
    sink = Recorder()
    stream = EventStream(interval=3600.0)
    stream.started(request("a"))
    stream.add(sink)
    stream.flush()
    assert not sink.events
    stream.start()
    stream.flush()
    assert len(sink.events) == 1
    stream.close(5.0)
    assert sink.closed


def test_a_full_queue_loses_rounds_before_requests_and_counts_them() -> None:
    sink = Recorder()
    stream = started_stream(sink, limit=100)
    for _ in range(120):
        stream.emit(drafting_round("a"))
    stream.finished(request("a"), completion("a"))
    stream.flush()
    assert (stream.missed_rounds, stream.dropped) == (30, 30)
    (batch,) = sink.batches
    assert (len(batch.rounds), len(batch.finished), batch.dropped) == (90, 1, 30)


def test_a_sink_that_raises_loses_its_own_batch_only(caplog: Any) -> None:
    broken, sink = Broken(), Recorder()
    stream = started_stream(broken, sink)
    stream.emit(drafting_round("a"))
    stream.flush()
    assert (stream.lost(broken), stream.lost(sink), stream.lost(broken, sink)) == (1, 0, 1)
    assert len(sink.events) == 1
    assert "a fuse has blown" in caplog.text


def test_a_sink_that_hangs_in_the_background_delays_no_other() -> None:
    hanging, sink = Hanging(), Recorder()
    background = BackgroundSink("test", hanging, limit=100, interval=0.001)
    stream = started_stream(background, sink)
    stream.emit(drafting_round("a"))
    stream.flush()
    assert hanging.entered.wait(10.0)
    for _ in range(150):
        stream.emit(drafting_round("a"))
    stream.finished(request("a"), completion("a"))
    assert stream.flush()
    assert len(sink.events) == 152
    assert background.dropped == 60, "rounds that found the queue full; the end of the request still fits"
    background.close(0.05)
    assert not hanging.closed, "it is left behind"
    hanging.released.set()
    background.close(10.0)
    assert hanging.closed
    assert len(hanging.events) == 92


def test_a_background_sink_gets_the_events_that_it_asked_for() -> None:
    sink = Recorder()
    background = BackgroundSink("test", sink, events=(RequestFinished, Note), interval=3600.0)
    stream = started_stream(background)
    stream.started(request("a"))
    stream.emit(drafting_round("a"))
    stream.note("anything")
    stream.finished(request("a"), completion("a"))
    stream.close(5.0)
    assert sink.closed
    assert [type(event) for event in sink.events] == [Note, RequestFinished]


def test_a_background_sink_that_raises_counts_what_it_lost() -> None:
    background = BackgroundSink("test", Broken(), interval=3600.0)
    background.handle(EventBatch([RoundEnded(0.0, drafting_round("a"))], 0.0))
    background.close(5.0)
    assert background.dropped == 1


def test_closing_a_queue_does_not_wait_for_a_handler_that_hangs() -> None:
    entered, released = threading.Event(), threading.Event()

    def handle(_: Sequence[int]) -> None:
        entered.set()
        released.wait()

    queue: BoundedQueue[int] = BoundedQueue("test", handle, interval=0.001)
    queue.start()
    queue.put(1)
    assert entered.wait(10.0)
    assert not queue.close(0.05)
    released.set()
    assert queue.close(10.0)

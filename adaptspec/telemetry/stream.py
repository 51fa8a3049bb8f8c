"""The path of events from the engine to sinks: bounded queues, and the threads that empty them.

A sink that computes (request log, metrics, live feed) runs on the stream's own thread. A sink that writes to a disk or
to the network, which may hang, runs on a thread of its own behind a `BackgroundSink`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from adaptspec.control.cost_model import CostModel
from adaptspec.request import Request
from adaptspec.results import Completion
from adaptspec.rounds import RoundRecord
from adaptspec.telemetry.events import Event, EventBatch, Note, RequestFinished, RequestStarted, RoundEnded, Sink

_log = logging.getLogger(__name__)
_RESERVED = 2000  # events other than rounds that still fit when rounds have filled a queue
_BATCH = 1024  # events that are handled at once: bounds how long `EventStream.lock` is held
FLUSH_SECONDS = 1.0
CLOSE_SECONDS = 5.0
T = TypeVar("T")


class Clock:
    """Monotonic seconds; `wall_offset` makes them seconds since 1970."""

    def now(self) -> float:
        return time.monotonic()

    def wall_offset(self) -> float:
        """As of now: the time of day may be set."""
        return time.time() - time.monotonic()


class BoundedQueue(Generic[T]):
    """A queue and the thread that empties it.

    `put` takes less than a microsecond on any thread and never waits. What does not fit is counted in `dropped`.
    `handle` gets all that has come, in order, and never runs on two threads at once. What it raises is logged, and the
    items that it was called with count as dropped.
    """

    def __init__(
        self, name: str, handle: Callable[[Sequence[T]], None], *, limit: int = 20_000, interval: float = 0.25
    ) -> None:
        """`limit`: the items that wait at most; `interval`: seconds between two calls of `handle`."""
        self._handle = handle
        self._limit = limit
        self._interval = interval
        self._items: deque[T] = deque()
        self._handling = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"adaptspec-{name}", daemon=True)
        self.dropped = 0

    def start(self) -> None:
        """Begin to empty the queue; items that were put in before wait for this."""
        self._thread.start()

    def put(self, item: T, reserved: int = 0) -> bool:
        """Append an item. Returns False if it was dropped; `reserved` items of the limit are left to others."""
        if len(self._items) >= self._limit - reserved:
            self.dropped += 1
            return False
        self._items.append(item)
        return True

    def flush(self, timeout: float = FLUSH_SECONDS) -> bool:
        """Handle what has come so far on the calling thread. False: another thread was at it for `timeout` seconds."""
        if not self._handling.acquire(timeout=timeout):
            return False
        try:
            items = [self._items.popleft() for _ in range(len(self._items))]
            if items:
                self._handle(items)
        except Exception:  # noqa: BLE001 - the thread must survive any batch
            self.dropped += len(items)
            _log.exception("%d entries of %s are lost", len(items), self._thread.name)
        finally:
            self._handling.release()
        return True

    def close(self, timeout: float) -> bool:
        """Handle what is left and end the thread. False: it hangs, and is left behind after `timeout`."""
        self._closing.set()
        if not self._thread.is_alive():
            return self.flush(timeout)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._closing.wait(self._interval):
            self.flush(-1)
        self.flush(-1)


class EventStream:
    """A `Sink` of the engine that hands events to sinks of its own, some times a second, on one worker thread.

    The engine's thread only appends. `dropped` events found the queue full, `missed_rounds` of them rounds; starts and
    ends of requests still fit when rounds have filled it. `costs` and `drafters` are the engine's, known from `start`
    on. `lock` is held while sinks handle a batch: a reader of several sinks takes it to read them at one moment.
    """

    def __init__(
        self, sinks: Sequence[Sink] = (), *, limit: int = 20_000, interval: float = 1.0, clock: Clock | None = None
    ) -> None:
        self._sinks = list(sinks)
        self._clock = clock or Clock()
        self._queue: BoundedQueue[Event] = BoundedQueue("telemetry", self._handle, limit=limit, interval=interval)
        self._reserved = min(_RESERVED, limit // 10)
        self._started = False
        self._failed: Counter[int] = Counter()
        self.costs: CostModel | None = None
        self.drafters: Sequence[str] = ()
        self.missed_rounds = 0
        self.lock = threading.RLock()

    @property
    def dropped(self) -> int:
        return self._queue.dropped

    @property
    def wall_time(self) -> float:
        """Now, in seconds since 1970."""
        return self._clock.now() + self._clock.wall_offset()

    def lost(self, *sinks: Sink) -> int:
        """Events that did not reach these sinks: dropped by the stream, or one of them raised in their batch."""
        return self._queue.dropped + sum(self._failed[id(sink)] for sink in sinks)

    def add(self, sink: Sink) -> None:
        """Add a sink, which gets each batch after those before it. Only before `start`."""
        self._sinks.append(sink)

    def start(self, costs: CostModel | None = None, drafters: Sequence[str] = ()) -> None:
        """Begin to hand events to sinks; earlier events wait for this. `costs` and `drafters` are the engine's."""
        self.costs, self.drafters = costs, tuple(drafters)
        self._started = True
        self._queue.start()

    def started(self, request: Request) -> None:
        self._queue.put(RequestStarted(self._clock.now(), request))

    def emit(self, record: RoundRecord) -> None:
        if not self._queue.put(RoundEnded(self._clock.now(), record), self._reserved):
            self.missed_rounds += 1

    def finished(self, request: Request, completion: Completion) -> None:
        self._queue.put(RequestFinished(self._clock.now(), request, completion))

    def note(self, subject: object) -> None:
        """Put in a `Note` for a sink, from any thread."""
        self._queue.put(Note(self._clock.now(), subject))

    def flush(self, timeout: float = FLUSH_SECONDS) -> bool:
        """Have sinks on the worker handle what has come so far. False: the worker was busy for `timeout` seconds."""
        return not self._started or self._queue.flush(timeout)

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Hand over what is left, then close each sink; `timeout` holds for each step."""
        if self._started:
            self._queue.close(timeout)
        for sink in self._sinks:
            sink.close(timeout)

    def _handle(self, events: Sequence[Event]) -> None:
        for start in range(0, len(events), _BATCH):
            part = events[start : start + _BATCH]
            batch = EventBatch(part, self._clock.wall_offset(), self._queue.dropped, self.costs, self.drafters)
            with self.lock:
                for sink in self._sinks:
                    self._pass_on(batch, sink)

    def _pass_on(self, batch: EventBatch, sink: Sink) -> None:
        try:
            sink.handle(batch)
        except Exception:  # noqa: BLE001 - the fault of one sink must not be that of another
            self._failed[id(sink)] += len(batch.events)
            _log.exception("%d events are lost to %s", len(batch.events), type(sink).__name__)


class BackgroundSink:
    """A sink that has another one handle its batches on a thread of its own, behind a bounded queue.

    Use it for a sink that may hang: `handle` never waits. `dropped` counts events that found the queue full and those
    of batches in which the sink raised.
    """

    def __init__(
        self,
        name: str,
        sink: Sink,
        *,
        events: tuple[type, ...] = (RequestStarted, RoundEnded, RequestFinished, Note),
        limit: int = 20_000,
        interval: float = 0.25,
    ) -> None:
        """`events`: the types that the sink gets; the others take no room. `name` names the thread."""
        self._sink = sink
        self._types = events
        self._wall_offset = 0.0
        self._upstream_dropped = 0
        self._queue: BoundedQueue[Event] = BoundedQueue(name, self._pass_on, limit=limit, interval=interval)
        self._reserved = min(_RESERVED, limit // 10)
        self._queue.start()

    @property
    def dropped(self) -> int:
        return self._queue.dropped

    def handle(self, batch: EventBatch) -> None:
        self._wall_offset, self._upstream_dropped = batch.wall_offset, batch.dropped
        for event in batch.events:
            if isinstance(event, self._types):
                self._queue.put(event, self._reserved if isinstance(event, RoundEnded) else 0)

    def close(self, timeout: float) -> None:
        """Hand over what is left and close the sink; a sink that hangs for `timeout` seconds is left behind."""
        if self._queue.close(timeout):
            self._sink.close(timeout)

    def _pass_on(self, events: Sequence[Event]) -> None:
        self._sink.handle(EventBatch(events, self._wall_offset, self._upstream_dropped + self._queue.dropped))

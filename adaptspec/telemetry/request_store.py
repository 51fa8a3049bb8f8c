"""The one store of running and recent requests and rounds: the engine's `Sink`, which all telemetry reads.

On the engine thread an entry goes into a bounded queue, and that is all. One worker takes entries out, once a
second, keeps requests up to date and hands each batch to the readers: those that count (metrics, earnings, live feed)
under the store's lock, then those that write (journal, traces), whom nobody waits for.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from adaptspec.decision import Reason
from adaptspec.request import Request
from adaptspec.results import Completion
from adaptspec.rounds import RoundRecord
from adaptspec.telemetry.bounded_queue import BoundedQueue
from adaptspec.telemetry.request_record import RequestRecord, bars_of, drafter_name, rows_of
from adaptspec.telemetry.totals import Totals

_log = logging.getLogger(__name__)
KEPT_ROUNDS = 256
RECENT_REQUESTS = 100
# A batch has at most so many new requests: the rows of those that end in it are not given away before the next.
NEW_IN_BATCH = 256
_OTHERS = 2000  # places that rounds leave to beginnings and ends of requests: rounds alone can pile up
_PATIENCE = 1.0  # seconds that a reader waits for the worker, which a hanging disk may hold up


class Clock:
    """Monotonic seconds; `offset` makes them seconds since 1970."""

    def now(self) -> float:
        return time.monotonic()

    def offset(self) -> float:
        """As of now: the time of day may be set."""
        return time.time() - time.monotonic()


class Started(NamedTuple):
    """A request was admitted."""

    when: float
    record: RequestRecord


class RoundEnded(NamedTuple):
    """A round, and the requests of its rows: None for one that nobody announced. The same tuple while they stay."""

    when: float
    round: RoundRecord
    requests: tuple[RequestRecord | None, ...]


class Finished(NamedTuple):
    """A request has ended, admitted or not; its record has the completion."""

    when: float
    record: RequestRecord


class Noted(NamedTuple):
    """What a reader has put in itself, to get it in order with all else; `running` are the requests that ran then."""

    when: float
    what: object
    running: tuple[RequestRecord, ...]


Event = Started | RoundEnded | Finished | Noted


@dataclass(frozen=True)
class Batch:
    """What has happened, in order. `clock` makes its times seconds since 1970.

    `dropped` entries found the queue full so far; after the `last` batch nothing comes.
    """

    events: Sequence[Event]
    clock: float
    dropped: int
    last: bool

    @cached_property
    def rounds(self) -> Sequence[RoundEnded]:
        return [event for event in self.events if isinstance(event, RoundEnded)]

    @cached_property
    def records(self) -> Sequence[RoundRecord]:
        return [event.round for event in self.rounds]


Reader = Callable[[Batch], None]


class RequestStore:
    """A `Sink`. Nothing is handled before `start`; what came before waits for it.

    `totals`, `running`, `recent` and `rounds` change under `lock`. `detailed`: each request's history has its rounds.
    """

    def __init__(self, *, limit: int = 20_000, pause: float = 1.0, clock: Clock | None = None) -> None:
        """`limit` entries wait at most, for `pause` seconds or little more."""
        self._clock = clock or Clock()
        self._queue = BoundedQueue[tuple[float, object]]("telemetry", self._handle, limit=limit, pause=pause)
        self._others = min(_OTHERS, limit // 10)
        self._started = False
        self._counting: list[Reader] = [self._add_up]
        self._writing: list[Reader] = []
        self._free: deque[int] = deque()
        self._batch: tuple[str, ...] = ()
        self._decoding: tuple[RequestRecord | None, ...] | None = None
        self._away: set[str] = set()
        self._lost: Counter[Reader] = Counter()
        self.lock = threading.RLock()
        self.rows = 0
        self.drafters: Sequence[str] = ()
        self.detailed = False
        self.missed_rounds = 0
        self.totals = Totals()
        self.running: dict[str, RequestRecord] = {}
        self.recent: deque[dict[str, Any]] = deque(maxlen=RECENT_REQUESTS)
        self.rounds: deque[RoundRecord] = deque(maxlen=KEPT_ROUNDS)

    def missing(self, reader: Reader) -> int:
        """Entries that found the queue full, or that this reader failed at."""
        return self._queue.dropped + self._lost[reader]

    @property
    def stray(self) -> int:
        return self.rows - 1

    def counts(self, reader: Reader) -> None:
        """Have a reader told of each batch, under the lock, before those that write."""
        self._counting.append(reader)

    def writes(self, reader: Reader) -> None:
        """Have a reader told of each batch that may take its time."""
        self._writing.append(reader)

    def start(self, max_rows: int, drafters: Sequence[str] = ()) -> None:
        """Begin: `max_rows` requests run at once, and the engine's `drafters` are called that."""
        self.rows = row_count(max_rows)
        self._free = deque(range(self.stray))
        self.drafters = tuple(drafters)
        self._started = True
        self._queue.start()

    def started(self, request: Request) -> None:
        self._queue.put((self._clock.now(), request))

    def emit(self, record: RoundRecord) -> None:
        if not self._queue.put((self._clock.now(), record), self._others):
            self.missed_rounds += 1

    def finished(self, request: Request, completion: Completion) -> None:
        self._queue.put((self._clock.now(), (request, completion)))

    def note(self, what: object) -> None:
        """Put in what one of the readers is to get as `Noted`; any thread may."""
        self._queue.put((self._clock.now(), what))

    def settle(self) -> None:
        """Have everything handled that came so far; given up after a second if the worker hangs."""
        if self._started:
            self._queue.work(_PATIENCE)

    def close(self) -> None:
        if self._started:
            self._queue.close()

    def requests(self, drafters: Sequence[str]) -> list[dict[str, Any]]:
        """The requests that run, each with its decisions in the last rounds, oldest first, as plain data."""
        self.settle()
        with self.lock:
            decisions: dict[str, list[dict[str, Any]]] = {}
            for record in self.rounds:
                for name, (bar,) in bars_of([record]).items():
                    told = bar._asdict() | {
                        "round": record.number,
                        "reason": Reason(bar.reason).name.lower(),
                        "drafter": drafter_name(drafters, bar.drafter) if bar.depth else None,
                    }
                    decisions.setdefault(name, []).append({key: told[key] for key in _DECISION})
            return [one.card() | {"rounds": decisions.get(name, [])} for name, one in self.running.items()]

    def _handle(self, entries: Sequence[tuple[float, object]]) -> None:
        parts = list(_parts(entries))
        for part in parts:
            with self.lock:
                events = [self._event(when, what) for when, what in part]
                last = self._queue.closing and part is parts[-1]
                batch = Batch(events, self._clock.offset(), self._queue.dropped, last)
                self._tell(self._counting, batch)
            self._tell(self._writing, batch)

    def _add_up(self, batch: Batch) -> None:
        self.totals = self.totals.plus(batch.records)

    def _tell(self, readers: Sequence[Reader], batch: Batch) -> None:
        for reader in readers:
            try:
                reader(batch)
            except Exception:  # noqa: BLE001 - one reader's fault must not be another's
                self._lost[reader] += len(batch.events)
                _log.exception("%d entries are lost to %s", len(batch.events), reader)

    def _event(self, when: float, what: object) -> Event:
        if isinstance(what, RoundRecord):
            return self._round(when, what)
        if isinstance(what, Request):
            return Started(when, self._admit(when, what))
        if isinstance(what, tuple):
            return Finished(when, self._end(when, *what))
        return Noted(when, what, tuple(self.running.values()))

    def _admit(self, when: float, request: Request) -> RequestRecord:
        if not self._free:
            # The end of a request has been missed: it is the oldest's.
            self._leave(next(iter(self.running)))
        record = self.running[request.id] = RequestRecord(request, self._free.popleft(), when)
        self._decoding = None
        return record

    def _end(self, when: float, request: Request, completion: Completion) -> RequestRecord:
        record = self._leave(request.id) or RequestRecord(request, self.stray, when)
        record.completion = completion
        if self.detailed:
            record.history.close(self.drafters)
        self.recent.append(record.ended(self._clock.offset()))
        return record

    def _leave(self, name: str) -> RequestRecord | None:
        record = self.running.pop(name, None)
        self._away.discard(name)
        self._decoding = None
        if record is not None:
            self._free.append(record.row)
        return record

    def _round(self, when: float, record: RoundRecord) -> RoundEnded:
        self.rounds.append(record)
        requests = self._requests_of(record, when - record.timing.total)
        for one, emitted in zip(requests, record.emitted.tolist(), strict=True):
            if one is not None:
                one.tokens += emitted
        if self.detailed:
            for one, row in zip(requests, rows_of(record, when), strict=True):
                if one is not None:
                    one.history.add(row)
        return RoundEnded(when, record, requests)

    def _requests_of(self, record: RoundRecord, when: float) -> tuple[RequestRecord | None, ...]:
        if record.request_ids != self._batch:
            if self.detailed:
                self._note_preempted(set(record.request_ids), when)
            self._batch, self._decoding = record.request_ids, None
        if self._decoding is None:
            self._decoding = tuple(self.running.get(name) for name in record.request_ids)
        return self._decoding

    def _note_preempted(self, names: set[str], when: float) -> None:
        """Who is missing and has not ended gave way to others, and comes back when there is room."""
        for name in self._batch:
            if name not in names and name in self.running:
                self._away.add(name)
                self.running[name].history.happened(when, "preempt", "gave way: the cache was full")
        for name in self._away & names:
            self._away.discard(name)
            self.running[name].history.happened(when, "resume", "has room again")


_DECISION = ("round", "depth", "reason", "drafter", "drafted", "accepted", "emitted", "nodes")


def row_count(max_rows: int) -> int:
    """Rows of the store where so many requests run at once; the last one is for those that nobody announced."""
    return max_rows + NEW_IN_BATCH + 1


def _parts(entries: Sequence[tuple[float, object]]) -> Iterator[Sequence[tuple[float, object]]]:
    """Entries in order, with at most `NEW_IN_BATCH` new requests in each part."""
    begin = new = 0
    for place, (_, what) in enumerate(entries):
        if isinstance(what, Request):
            if new == NEW_IN_BATCH:
                yield entries[begin:place]
                begin, new = place, 0
            new += 1
    yield entries[begin:]

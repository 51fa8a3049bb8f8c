"""The live feed: what the engine did in the last minutes and does now, for whoever looks. A `Sink`.

On the engine thread it only appends to a queue of bounded length; everything else is done by the one thread that
reads. Nothing of it is text of a prompt or an answer. Knows no HTTP and no clients.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from adaptspec.telemetry.earnings import EarningsSnapshot
from adaptspec.telemetry.live_earnings import compared, earned
from adaptspec.telemetry.live_schema import Bar, Running, bars_of, ended, last_bars
from adaptspec.telemetry.live_seconds import Second
from adaptspec.types import Completion, Request, RoundRecord

HISTORY_SECONDS = 300
RECENT_REQUESTS = 100
KEPT_ROUNDS = 256  # as they are, for the strips of a watcher that has just come
STRIP_ROUNDS = 120  # of one request
# Rounds that wait to be read. A reader comes every second at least, and no engine runs this many in that time.
WAITING_ROUNDS = 4096


@dataclass(frozen=True)
class Changes:
    """What has happened since the last time: seconds that differ now, requests that came and went, rounds by request.

    A second that is told again replaces what was said of it.
    """

    seconds: list[dict[str, Any]] = field(default_factory=list)
    started: list[dict[str, Any]] = field(default_factory=list)
    finished: list[dict[str, Any]] = field(default_factory=list)
    bars: dict[str, list[Bar]] = field(default_factory=dict)
    earnings: dict[str, Any] | None = None
    missed: int = 0

    @property
    def empty(self) -> bool:
        """Whether nothing has happened."""
        return not (self.seconds or self.started or self.finished)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "seconds": self.seconds,
            "started": self.started,
            "finished": self.finished,
            "rounds": self.bars,
            "earnings": self.earnings,
            "missed_rounds": self.missed,
        }


class LiveFeed:
    """Keeps the last minutes. The engine thread writes; `changes` and `snapshot` belong to one other thread.

    `changes` is to be called about once a second even when nobody wants to know, so that the queue does not fill up;
    rounds that found it full are counted in `missed`, and lost.
    """

    def __init__(
        self, earnings: Callable[[], EarningsSnapshot] = EarningsSnapshot, clock: Callable[[], float] = time.time
    ) -> None:
        """`earnings` tells what was earned so far, `clock` gives seconds since 1970."""
        self._earnings = earnings
        self._earned = self._told_earned = EarningsSnapshot()
        self._clock = clock
        self._offset = time.time() - time.monotonic()
        self._queue: deque[tuple[float, RoundRecord | Request | tuple[Request, Completion]]] = deque()
        self._refused = 0
        self._kept: deque[RoundRecord] = deque(maxlen=KEPT_ROUNDS)
        self._running: dict[str, Running] = {}
        self._recent: deque[dict[str, Any]] = deque(maxlen=RECENT_REQUESTS)
        self._seconds: deque[Second] = deque(maxlen=HISTORY_SECONDS)

    @property
    def missed(self) -> int:
        """Rounds that nobody read in time."""
        return self._refused

    def started(self, request: Request) -> None:
        """One request has been admitted."""
        self._queue.append((self._clock(), request))

    def emit(self, record: RoundRecord) -> None:
        """One round has ended."""
        # Requests come and go in pairs, and are kept whole; it is rounds that could pile up without end.
        if len(self._queue) < WAITING_ROUNDS:
            self._queue.append((self._clock(), record))
        else:
            self._refused += 1

    def finished(self, request: Request, completion: Completion) -> None:
        """One request has ended."""
        self._queue.append((self._clock(), (request, completion)))

    def estimate(self) -> None:
        """Ask what was earned, for the next `changes` to say; takes milliseconds, on whatever thread."""
        self._earned = self._earnings()

    def changes(self, *, strips: bool = False) -> Changes:
        """Take in what has happened since the last call, and say what it was; rounds by request only with `strips`."""
        started, finished, rounds = self._read()
        changed = self._sum(rounds, [at for at, _, _ in finished])
        changed += self._compare(changed)
        records = [record for _, record in rounds]
        self._kept.extend(records)
        self._count(records)
        ends = [self._end(request, completion) for _, request, completion in finished]
        return Changes(
            [second.to_json() for second in changed],
            [one.to_json() for one in started],
            ends,
            bars_of(records) if strips else {},
            earned(self._earned),
            self._refused,
        )

    def snapshot(self) -> dict[str, Any]:
        """Everything as of the last `changes`, as plain data."""
        wanted = {*self._running, *(one["id"] for one in self._recent)}
        strips = last_bars(self._kept, wanted, STRIP_ROUNDS)
        return {
            "seconds": [second.to_json() for second in self._seconds],
            "running": [one.to_json() | {"rounds": strips.get(name, [])} for name, one in self._running.items()],
            "recent": [one | {"rounds": strips.get(one["id"], [])} for one in self._recent],
            "earnings": earned(self._earned),
            "missed_rounds": self._refused,
        }

    def _read(self) -> tuple[list[Running], list[tuple[float, Request, Completion]], list[tuple[float, RoundRecord]]]:
        started, finished, rounds = [], [], []
        for _ in range(len(self._queue)):
            at, entry = self._queue.popleft()
            if isinstance(entry, RoundRecord):
                rounds.append((at, entry))
            elif isinstance(entry, Request):
                self._running[entry.id] = one = Running(entry, at)
                started.append(one)
            else:
                finished.append((at, *entry))
        return started, finished, rounds

    def _sum(self, rounds: list[tuple[float, RoundRecord]], ends: list[float]) -> list[Second]:
        """Add rounds and ends of requests to the seconds they came in, and return those."""
        by_second: dict[int, list[RoundRecord]] = {}
        for at, record in rounds:
            by_second.setdefault(int(at), []).append(record)
        ended = Counter(map(int, ends))
        tasks = {name: one.request.speculation.task for name, one in self._running.items()}
        changed: dict[int, Second] = {}
        for at in sorted(by_second.keys() | ended.keys()):
            second = self._second(at)
            second.ended += ended[at]
            if at in by_second:
                second.add(by_second[at], tasks)
            changed[second.at] = second
        return list(changed.values())

    def _second(self, at: int) -> Second:
        """The sums of a second; where the clock was set back, those of the newest."""
        if not self._seconds or self._seconds[-1].at < at:
            self._seconds.append(Second(at))
        return self._seconds[-1]

    def _compare(self, changed: list[Second]) -> list[Second]:
        """Add what is newly estimated to the newest second, and return that unless it is among the changed ones."""
        now, before = self._earned, self._told_earned
        more = compared(before, now)
        if not any(more) or not self._seconds:
            return []
        self._told_earned = now
        newest = self._seconds[-1]
        newest.compare(more)
        return [] if newest in changed else [newest]

    def _count(self, records: list[RoundRecord]) -> None:
        for record in records:
            for name, emitted in zip(record.request_ids, record.emitted.tolist(), strict=True):
                one = self._running.get(name)
                if one is not None:
                    one.tokens += emitted

    def _end(self, request: Request, completion: Completion) -> dict[str, Any]:
        self._running.pop(request.id, None)
        told = ended(request, completion, self._offset)
        self._recent.append(told)
        return told

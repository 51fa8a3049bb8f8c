"""What is known of each running and recent request: its rounds, their sums, rare events, and how it ended.

Never text of a prompt or an answer, except in the request and the completion themselves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, repeat
from math import isnan, nan
from typing import Any, NamedTuple

import numpy as np

from adaptspec.control.cost_model import CostModel
from adaptspec.decision import Reason
from adaptspec.request import Request
from adaptspec.results import Completion
from adaptspec.rounds import RoundRecord
from adaptspec.telemetry.events import EventBatch, Note, PolicyReloaded, RequestFinished, RequestStarted, RoundEnded
from adaptspec.telemetry.speedup import Estimate, speedup
from adaptspec.telemetry.sums import RoundSums, RowTable

KEPT_ROUNDS = 512  # of a request, one by one; its sums go on
KEPT_NOTES = 32  # of a request
ENDED_REQUESTS = 100
MAX_RUNNING = 4096
_OFF = (Reason.GUARD, Reason.OFF)


class RequestRound(NamedTuple):
    """One round of one request. Unknown is NaN.

    `ended` is on the monotonic clock; `seconds`, `rows` and `prefill_tokens` are of the whole round. `accepted` tokens
    were emitted, `expected` of them were expected. `nodes` are all tokens that were verified, `drafted` those along the
    longest path. `context`: tokens before the round. `confidence` is of the first drafted token, `entropy` [nats] the
    mean of the drafted ones.
    """

    number: int
    ended: float
    seconds: float
    rows: int
    depth: int
    reason: int
    drafter: int
    drafted: int
    accepted: int
    emitted: int
    nodes: int
    context: int
    confidence: float
    entropy: float
    expected: float
    prefill_tokens: int


class RequestNote(NamedTuple):
    """Something rare that happened to a request, `when` in seconds on the monotonic clock."""

    when: float
    name: str  # switch, off, probe, preempt, resume, reload
    detail: str


# A `RequestRound` as it is kept: the garbage collector does not look through plain tuples of numbers again and again.
Values = tuple[Any, ...]


def request_rounds(record: RoundRecord, ended: float) -> Iterator[Values]:
    """The values of `RequestRound` for each row of a round, which `ended` then."""
    unknown = repeat(nan)
    return zip(
        repeat(record.number),
        repeat(ended),
        repeat(record.timing.total),
        repeat(len(record.rows)),
        record.depths.tolist(),
        record.reasons.tolist(),
        record.drafter.tolist(),
        record.drafted.tolist(),
        map(min, record.accepted.tolist(), record.emitted.tolist()),
        record.emitted.tolist(),
        record.nodes.tolist(),
        record.context.tolist(),
        record.confidence[:, 0].tolist() if record.confidence.shape[1] else unknown,
        map(_mean, record.entropy.tolist()) if record.entropy.shape[1] else unknown,
        unknown if record.expected is None else record.expected.accepted.tolist(),
        repeat(record.prefill_tokens),
        strict=False,  # the repeated values have no end
    )


@dataclass
class LoggedRequest:
    """A request and what happened to it; does not change any more once it has a `completion`.

    `started` is when it was admitted and `first_round` when its first decoding round began, on the monotonic clock.
    `drafters` are the names of the engine's drafters, which `RequestRound.drafter` indexes. `speedup` is set when the
    request ends.
    """

    request: Request
    started: float
    drafters: Sequence[str] = ()
    values: deque[Values] = field(default_factory=lambda: deque(maxlen=KEPT_ROUNDS))
    sums: RoundSums = field(default_factory=RoundSums)
    notes: list[RequestNote] = field(default_factory=list)
    completion: Completion | None = None
    speedup: Estimate | None = None
    first_round: float | None = None

    @property
    def rounds(self) -> list[RequestRound]:
        """The last `KEPT_ROUNDS` decoding rounds, oldest first."""
        return [RequestRound._make(values) for values in self.values]

    @property
    def tokens(self) -> int:
        """Tokens of the answer so far. The first one comes with the prompt, in no decoding round."""
        if self.completion is not None:
            return len(self.completion.tokens)
        return self.sums.emitted + (self.sums.rows > 0)

    def drafter_name(self, index: int) -> str:
        """Name of a drafter, or its number where names are unknown."""
        return self.drafters[index] if index < len(self.drafters) else str(index)

    def note(self, when: float, name: str, detail: str) -> None:
        """Add a rare event; the first `KEPT_NOTES` are kept."""
        if len(self.notes) < KEPT_NOTES:
            self.notes.append(RequestNote(when, name, detail))

    def events(self) -> list[RequestNote]:
        """The notes and the changes from round to round among the kept rounds, in order, at most `KEPT_NOTES`."""
        return sorted([*self.notes, *self._changes()])[:KEPT_NOTES]

    def _changes(self) -> Iterator[RequestNote]:
        for before, now in pairwise(self.rounds):
            start = now.ended - now.seconds
            if now.reason == Reason.PROBE and before.reason != now.reason:
                yield RequestNote(start, "probe", "speculation is tried again")
            elif now.reason in _OFF and before.reason not in _OFF:
                why = "drafting measured slower" if now.reason == Reason.GUARD else "drafts are expected to lose"
                yield RequestNote(start, "off", why)
            if now.depth and (not before.depth or now.drafter != before.drafter):
                yield RequestNote(start, "switch", f"to {self.drafter_name(now.drafter)} at depth {now.depth}")


class RequestLog:
    """The running requests and the last `ENDED_REQUESTS`. A `Sink`, and the first one: it completes `RequestFinished`.

    Readers on other threads hold the lock of the stream.
    """

    def __init__(self, *, max_running: int = MAX_RUNNING) -> None:
        """Where ends of requests were lost, only the latest `max_running` requests are kept as running."""
        self.running: dict[str, LoggedRequest] = {}
        self.ended: deque[LoggedRequest] = deque(maxlen=ENDED_REQUESTS)
        self._costs: CostModel | None = None
        self._max_running = max_running
        self._batch: tuple[str, ...] = ()  # the requests of the last round
        self._absent: dict[str, float] = {}  # running requests that left the batch, and when

    def find(self, request_id: str) -> LoggedRequest | None:
        """A running request or one of the last that ended."""
        ended = (one for one in reversed(self.ended) if one.request.id == request_id)
        return self.running.get(request_id) or next(ended, None)

    def speedup(self, logged: LoggedRequest) -> Estimate | None:
        """How much faster than plain decoding a request was, or is so far."""
        if logged.completion is not None or self._costs is None:
            return logged.speedup
        return speedup(self._costs, logged.sums.ran, logged.sums.plain)

    def handle(self, batch: EventBatch) -> None:
        self._costs = batch.costs
        rows: list[LoggedRequest | None] = []
        for event in batch.events:
            if isinstance(event, RoundEnded):
                rows += self._add_round(event)
            elif isinstance(event, RequestStarted):
                self._start(event, batch.drafters)
            elif isinstance(event, RequestFinished):
                event.logged = self._finish(event)
            elif isinstance(event.subject, PolicyReloaded):
                self._reload(event, event.subject.policy)
        self._add_sums(batch.table, rows)
        for finished in batch.finished:
            if finished.logged is not None and self._costs is not None:
                finished.logged.speedup = speedup(self._costs, finished.logged.sums.ran, finished.logged.sums.plain)

    def close(self, timeout: float) -> None:
        pass

    def _start(self, event: RequestStarted, drafters: Sequence[str]) -> None:
        while len(self.running) >= self._max_running:  # the end of the oldest one was lost
            self._remove(next(iter(self.running)))
        self.running[event.request.id] = LoggedRequest(event.request, event.when, drafters)

    def _finish(self, event: RequestFinished) -> LoggedRequest:
        logged = self._remove(event.request.id)
        if logged is None:
            logged = LoggedRequest(event.request, event.when)
        logged.completion = event.completion
        self.ended.append(logged)
        return logged

    def _remove(self, request_id: str) -> LoggedRequest | None:
        self._absent.pop(request_id, None)
        return self.running.pop(request_id, None)

    def _reload(self, note: Note, policy: str) -> None:
        for logged in self.running.values():
            if logged.request.speculation.policy == policy:
                logged.note(note.when, "reload", f"policy {policy} was reloaded")

    def _add_round(self, event: RoundEnded) -> tuple[LoggedRequest | None, ...]:
        record = event.record
        if record.request_ids != self._batch:
            self._note_preempted(record.request_ids, event.when - record.timing.total)
            self._batch = record.request_ids
        requests = tuple(map(self.running.get, record.request_ids))
        for logged, values in zip(requests, request_rounds(record, event.when), strict=True):
            if logged is not None:
                logged.values.append(values)
                if logged.first_round is None:
                    logged.first_round = event.when - record.timing.total
        return requests

    def _note_preempted(self, present: Sequence[str], when: float) -> None:
        """A request that was absent from rounds and is back was preempted; one that has failed never comes back."""
        for name in self.running.keys() & set(self._batch) - set(present):
            self._absent[name] = when
        for name in self._absent.keys() & set(present):
            self.running[name].note(self._absent.pop(name), "preempt", "gave way to others: the cache was full")
            self.running[name].note(when, "resume", "has room again")

    def _add_sums(self, table: RowTable, rows: Sequence[LoggedRequest | None]) -> None:
        """Add rounds to the sums of the requests of their `rows` [N]."""
        known: dict[int, tuple[int, LoggedRequest]] = {}
        groups = [-1 if one is None else known.setdefault(id(one), (len(known), one))[0] for one in rows]
        if known:
            sums = table.by_row(np.array(groups, dtype=np.int64), len(known))
            for index, logged in known.values():
                logged.sums = logged.sums + sums[index]


def _mean(values: list[float]) -> float:
    known = [value for value in values if not isnan(value)]
    return sum(known) / len(known) if known else nan

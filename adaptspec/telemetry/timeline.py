"""A journal as a timeline: the engine's rounds and their parts, a track per request, and curves. Goes through it once.

Holds the rounds of requests that run, and nothing of those that have ended.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import isnan
from typing import Any

from adaptspec.arrays import FloatArray
from adaptspec.decision import Reason
from adaptspec.errors import JournalError
from adaptspec.journal import Entry, JournalHeader, LinesDropped, RequestFinished, RequestStarted
from adaptspec.rounds import RoundRecord
from adaptspec.telemetry.request_record import drafter_name
from adaptspec.telemetry.trace_events import Curves, Event, process_name, slice_event, track_name

ENGINE, REQUESTS = 1, 2  # processes of the trace
# A track with the number of its process would be labelled as its main thread.
_FIRST_TRACK = 10
_ROUNDS = (ENGINE, _FIRST_TRACK)  # the engine's only track
# Viewers colour slices by the words of their names, numbers left out: (deepest, word).
_TIERS = ((0, "off"), (1, "single"), (3, "short"), (6, "long"), (10**9, "deep"))


@dataclass
class _Running:
    """A request that has not ended: its track, and the slices that wait for what they lie in."""

    track: tuple[int, int]
    policy: str | None
    waiting: list[Event] = field(default_factory=list)
    split: bool = False  # some of its slices were written already: those around them would come too late


class Timeline:
    """Turns entries into events. Within each track, events come in order, and what encloses comes first.

    A round is the same slice on the engine's track and on that of each request in it; of its parts the journal tells
    drafting and verification, so what deciding took beforehand is drawn at the end, within `host`. Times are
    those of the monotonic clock of the process that wrote the journal; of several, that of the first.

    `only` says which requests have a track. `rounds` and `tracks` count what has been drawn so far.
    """

    def __init__(self, only: Callable[[str], bool] = lambda _: True) -> None:
        self._only = only
        self._running: dict[str, _Running] = {}
        self._drafters: Sequence[str] = ()
        self._clock: float | None = None
        self._shift = 0  # nanoseconds added to times: a later process has another clock
        self._written_to = 0
        self._curves = Curves(ENGINE)
        self.rounds = self.tracks = 0

    def events(self, entries: Iterable[Entry]) -> Iterator[Event]:
        yield from process_name(ENGINE, "engine")
        yield from track_name(_ROUNDS, "rounds")
        yield from process_name(REQUESTS, "requests")
        for entry in entries:
            if isinstance(entry, RoundRecord):
                yield from self._round(entry)
            elif isinstance(entry, RequestStarted):
                yield from self._start(entry)
            elif isinstance(entry, RequestFinished):
                yield from self._finish(entry)
            elif isinstance(entry, LinesDropped):
                yield from self._let_go()
            else:
                yield from self._begin(entry)
        yield from self._let_go()
        yield from self._curves.end()

    def _begin(self, header: JournalHeader) -> Iterator[Event]:
        self._drafters = header.drafters
        if header.clock == self._clock:
            return  # the next file of the same process
        if self._clock is None:
            self._clock = header.clock
        self._shift = _nanoseconds(header.clock - self._clock)
        yield from self._let_go()
        self._running.clear()

    def _let_go(self) -> Iterator[Event]:
        """Write what waits for the end of requests whose end may never be told."""
        for running in self._running.values():
            yield from running.waiting
            running.waiting.clear()
            running.split = True

    def _start(self, entry: RequestStarted) -> Iterator[Event]:
        # Ids are unique among the running requests only.
        before = self._running.pop(entry.id, None)
        if before is not None:
            yield from before.waiting
        if self._only(entry.id):
            words = [entry.task, entry.policy, entry.id]
            yield from self._open(entry.id, " ".join(word for word in words if word), entry.policy)

    def _open(self, name: str, title: str, policy: str | None) -> Iterator[Event]:
        self.tracks += 1
        track = (REQUESTS, _FIRST_TRACK + self.tracks)
        self._running[name] = _Running(track, policy)
        yield from track_name(track, title)

    def _finish(self, entry: RequestFinished) -> Iterator[Event]:
        running = self._running.pop(entry.id, None)
        if running is None:
            return  # not asked for, or nothing is left of it
        if not running.split:
            yield from self._phases(entry, running.track)
        yield from running.waiting

    def _phases(self, entry: RequestFinished, track: tuple[int, int]) -> Iterator[Event]:
        end = _nanoseconds(entry.ended) + self._shift
        arrived = end - _nanoseconds(entry.seconds)
        told = {name: getattr(entry, name) for name in ("policy", "finish", "tokens", "rounds", "drafted", "accepted")}
        if entry.nodes is not None and entry.nodes > entry.drafted:
            told["nodes"] = entry.nodes
        yield slice_event(track, "request", arrived, end - arrived, **told)
        admitted = end if entry.queued is None else arrived + _nanoseconds(entry.queued)
        first = end if entry.to_first_token is None else arrived + _nanoseconds(entry.to_first_token)
        for name, start, stop in (("queue", arrived, admitted), ("prefill", admitted, first), ("decode", first, end)):
            if stop > start:
                yield slice_event(track, name, start, stop - start)

    def _round(self, record: RoundRecord) -> Iterator[Event]:
        if isnan(record.ended):
            raise JournalError(f"round {record.number} does not say when it was; give the journal of a server")
        self.rounds += 1
        length = _nanoseconds(record.timing.total)
        start = _nanoseconds(record.ended) - length + self._shift
        if start < self._written_to:
            # Wall clocks may be set back between two processes.
            self._shift += self._written_to - start
            start = self._written_to
        self._written_to = start + length
        yield slice_event(_ROUNDS, "round", start, length, **_of_round(record))
        yield from _parts(record, start, length)
        yield from self._curves.add(record, start, length)
        for i, name in enumerate(record.request_ids):
            if name not in self._running and self._only(name):
                yield from self._open(name, name, None)
            if name in self._running:
                running = self._running[name]
                told = self._of_row(record, i, running.policy)
                event = slice_event(running.track, _tier_name(int(record.depths[i])), start, length, **told)
                running.waiting.append(event)

    def _of_row(self, record: RoundRecord, i: int, policy: str | None) -> dict[str, Any]:
        drafted, drafter = int(record.drafted[i]), int(record.drafter[i])
        told: dict[str, Any] = {
            "round": record.number,
            "policy": policy,
            "reason": Reason(int(record.reasons[i])).name.lower(),
            "tier": int(record.depths[i]),
            "drafter": self._drafters[drafter] if drafted and drafter < len(self._drafters) else None,
            "drafted": drafted,
            "accepted": int(min(record.accepted[i], record.emitted[i])),
            "emitted": int(record.emitted[i]),
            "context": int(record.context[i]),
            "entropy": _mean(record.entropy[i]),
            "confidence": _mean(record.confidence[i]),
            **self._tree(record, i),
        }
        if record.expected is not None:
            told["expected_accepted"] = _known(record.expected.accepted[i])
        return {name: value for name, value in told.items() if value is not None}

    def _tree(self, record: RoundRecord, i: int) -> dict[str, Any]:
        """Nodes by who proposed them, and the ranks of the accepted ones; nothing of a chain."""
        branches, nodes = record.branches, int(record.nodes[i])
        if branches is None or nodes == branches.tree.chain[i]:
            return {}
        owners = Counter(branches.tree.drafter[branches.tree.row_nodes(i)].tolist())
        emitted = min(int(record.accepted[i]), int(record.emitted[i]))
        names = {drafter_name(self._drafters, which): count for which, count in owners.items()}
        return {"nodes": nodes, "proposed": names, "path": branches.ranks(i, emitted)}


def _tier_name(depth: int) -> str:
    word = next(word for deepest, word in _TIERS if depth <= deepest)
    return f"{word} {depth}" if depth else word


def _of_round(record: RoundRecord) -> dict[str, Any]:
    told = {"number": record.number, "batch": len(record.request_ids), "emitted": int(record.emitted.sum())}
    told |= {name: getattr(record, name) for name in ("prefill_tokens", "draft_steps", "caught_up", "target_tokens")}
    expected = None if record.expected is None else _known(record.expected.goodput)
    return told if expected is None else {**told, "expected_goodput": expected}


def _parts(record: RoundRecord, start: int, length: int) -> Iterator[Event]:
    at, end = start, start + length
    parts = (("draft", record.timing.draft), ("verify", record.timing.verify), ("host", record.timing.total))
    for name, seconds in parts:
        part = min(_nanoseconds(seconds), end - at)  # what is left is the host's; rounding may ask for one too many
        if part:
            yield slice_event(_ROUNDS, name, at, part)
        at += part


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def _mean(values: FloatArray) -> float | None:
    # Of so few values a list is sooner added up than an array.
    known = [value for value in values.tolist() if not isnan(value)]
    return sum(known) / len(known) if known else None


def _known(value: float) -> float | None:
    return None if isnan(value) else float(value)


def latest(entries: Iterable[Entry], seconds: float) -> Iterator[Entry]:
    """Entries of the last `seconds` before the newest one, after the header they are under and the requests that ran.

    Goes through the journal once, and holds no more than what it gives.
    """
    header: JournalHeader | None = None
    running: dict[str, RequestStarted] = {}
    held: deque[tuple[float, Entry]] = deque()
    clock = now = 0.0
    for entry in entries:
        if isinstance(entry, JournalHeader):
            clock = entry.clock
        elif isinstance(entry, (RoundRecord, RequestFinished)):
            now = max(now, clock + entry.ended)
        held.append((now, entry))
        while held[0][0] < now - seconds:
            _, gone = held.popleft()
            if isinstance(gone, JournalHeader):
                header = gone
            elif isinstance(gone, RequestStarted):
                running[gone.id] = gone
            elif isinstance(gone, RequestFinished):
                running.pop(gone.id, None)
    if header is not None:
        yield header
    yield from running.values()
    for _, entry in held:
        yield entry

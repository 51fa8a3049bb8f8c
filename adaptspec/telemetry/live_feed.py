"""The live feed: what the engine did in the last minutes and does now, as plain data for the page and `adaptspec top`.

The JSON has no text of a prompt or an answer and no NaN. Fields are only ever added.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import isnan
from operator import itemgetter
from typing import Any

import numpy as np

from adaptspec.control.tasks import OTHER
from adaptspec.decision import Reason
from adaptspec.telemetry.events import EventBatch, RequestFinished, RequestStarted, RoundEnded
from adaptspec.telemetry.requests import LoggedRequest, RequestLog, RequestRound, Values, request_rounds
from adaptspec.telemetry.speedup import Estimate
from adaptspec.telemetry.stream import FLUSH_SECONDS, EventStream
from adaptspec.telemetry.summary import Json, Window, by_drafter, counts, estimate, sentence, speeds, summarize

HISTORY_SECONDS = 300
RECENT_SECONDS = 30  # of the summary
STRIP_ROUNDS = 120  # of one request
WAITING_ROUNDS = 4096  # until `changes` is called; no engine runs this many between two calls
STRIP_COLUMNS = ("number", "depth", "drafted", "accepted", "emitted", "drafter", "reason", "entropy")
_strip = itemgetter(*map(RequestRound._fields.index, STRIP_COLUMNS))


@dataclass
class Second:
    """One second, `at` seconds since 1970; `json` is its serialized form, None after a change."""

    at: int
    window: Window = field(default_factory=Window)
    json: Json | None = None


@dataclass
class Changes:
    """What happened since the last call: seconds that changed, requests that came and went, new rounds by request.

    A second replaces the one of the same `at`. `running` has new figures of requests that got rounds.
    """

    summary: Json
    costs_unsure: bool
    seconds: list[Json]
    started: list[Json]
    finished: list[Json]
    rounds: dict[str, list[list[Any]]]
    running: dict[str, Json]
    missed_rounds: int

    @property
    def empty(self) -> bool:
        return not (self.seconds or self.started or self.finished)


class LiveFeed:
    """A `Sink` with sums of the last minutes and what is new in them. Any thread may read it.

    New rounds are collected only while `following`; `changes` is then to be called some times a second.
    """

    def __init__(self, stream: EventStream, log: RequestLog) -> None:
        """`log` is a sink of the same stream, before this one."""
        self._stream = stream
        self._log = log
        self._total = Window()
        self._seconds: deque[Second] = deque(maxlen=HISTORY_SECONDS)
        self._ended: deque[Json] = deque(maxlen=log.ended.maxlen)
        self._wall_offset = 0.0
        self._missed = 0
        self.lock = stream.lock
        self.following = False
        self._forget()

    def _forget(self) -> None:
        self._changed: dict[int, Second] = {}
        self._started: list[Json] = []
        self._finished: list[Json] = []
        self._rounds: list[RoundEnded] = []

    @property
    def missed_rounds(self) -> int:
        """Rounds that came too fast and are in no figure, or in no strip."""
        return self._stream.missed_rounds + self._missed

    def flush(self) -> None:
        """Take in all that came so far. Computes for milliseconds, so it is not for an event loop."""
        self.flush_events()
        with self.lock:
            for second in self._seconds:
                self._json(second)

    def flush_events(self, timeout: float = FLUSH_SECONDS) -> None:
        """Take in all that came so far; given up after `timeout` seconds."""
        self._stream.flush(timeout)

    def speedup(self, request_id: str) -> Estimate | None:
        """How much faster than plain decoding a running or recent request was, as of the last flush."""
        with self.lock:
            logged = self._log.find(request_id)
            return None if logged is None else self._log.speedup(logged)

    def handle(self, batch: EventBatch) -> None:
        self._wall_offset = batch.wall_offset
        times = [int(event.when + batch.wall_offset) for event in batch.events]
        finished: defaultdict[int, int] = defaultdict(int)
        for at, event in zip(times, batch.events, strict=True):
            if isinstance(event, RequestFinished):
                finished[at] += 1
        rounds = [int(one.when + batch.wall_offset) for one in batch.rounds]
        windows = dict(_windows(rounds, batch, self._log))
        for at in sorted(windows.keys() | finished.keys()):
            second, window = self._second(at), windows.get(at)
            if window is not None:
                second.window += window
                self._total += window
            if finished[at]:
                second.window = replace(second.window, finished=second.window.finished + finished[at])
                self._total = replace(self._total, finished=self._total.finished + finished[at])
            second.json = None
        self._add_requests(batch)
        if not self.following:
            self._forget()

    def close(self, timeout: float) -> None:
        pass

    def changes(self) -> Changes:
        """What is new since the last call."""
        with self.lock:
            rounds = _by_request(self._rounds)
            changed = Changes(
                summary=self._summary(),
                costs_unsure=self._costs_unsure,
                seconds=[self._json(second) for second in self._changed.values()],
                started=self._started,
                finished=self._finished,
                rounds={name: [_column_values(one) for one in values] for name, values in rounds.items()},
                running={name: self._figures(self._log.running[name]) for name in rounds if name in self._log.running},
                missed_rounds=self.missed_rounds,
            )
            self._forget()
            return changed

    def snapshot(self) -> Json:
        """Everything, as of the last flush."""
        with self.lock:
            return {
                "summary": self._summary(),
                "costs_unsure": self._costs_unsure,
                "seconds": [self._json(second) for second in self._seconds],
                "running": [self._card(one) | {"rounds": _strip_of(one.values)} for one in self._log.running.values()],
                "recent": list(self._ended),
                "missed_rounds": self.missed_rounds,
            }

    def request(self, request_id: str, now: float) -> Json | None:
        """All that is known of a running or recent request; None: unknown. `now` is in seconds since 1970."""
        with self.lock:
            logged = self._log.find(request_id)
            if logged is None:
                return None
            return {
                "request": self._card(logged) | {"rounds": []},
                "sentence": sentence(logged),
                "phases": _phases(logged, self._wall_offset, now),
                "events": [
                    {"at": self._wall(one.when), "name": one.name, "detail": one.detail} for one in logged.events()
                ],
                "columns": RequestRound._fields,
                "rounds": [
                    [_known(value) for value in one._replace(ended=self._wall(one.ended))] for one in logged.rounds
                ],
                "omitted_rounds": logged.sums.rows - len(logged.values),
            }

    @property
    def _costs_unsure(self) -> bool:
        return self._stream.costs is not None and self._stream.costs.uncertain

    def _summary(self) -> Json:
        before = int(self._stream.wall_time) - RECENT_SECONDS
        recent = [second.window for second in self._seconds if second.at > before]
        return {
            "recent": summarize(recent, self._stream.costs, self._stream.drafters),
            "total": summarize([self._total], self._stream.costs, self._stream.drafters),
        }

    def _second(self, at: int) -> Second:
        """The sums of a second; if the clock was set back, those of the newest one."""
        if not self._seconds or self._seconds[-1].at < at:
            self._seconds.append(Second(at))
        newest = self._seconds[-1]
        self._changed[newest.at] = newest
        return newest

    def _json(self, second: Second) -> Json:
        """A second as plain data; its speed-up stays what it was at the first reading after a change."""
        if second.json is None:
            window, sums = second.window, second.window.sums
            reasons = {reason.label: int(sums.reasons[reason]) for reason in Reason if sums.reasons[reason]}
            second.json = {
                "at": second.at,
                "rounds": sums.rounds,
                **counts(sums),
                "prefill_tokens": round(sums.prefill_tokens),
                "busy": round(sums.seconds, 6),
                "finished": window.finished,
                **speeds(sums, self._stream.costs),
                "depths": {str(depth): int(sums.depths[depth]) for depth in np.flatnonzero(sums.depths)},
                "reasons": reasons,
                "tasks": {task: counts(one) for task, one in window.tasks.items()},
                "drafters": by_drafter(sums, self._stream.drafters),
            }
        return second.json

    def _add_requests(self, batch: EventBatch) -> None:
        for event in batch.events:
            if isinstance(event, RequestStarted):
                self._started.append(self._card(LoggedRequest(event.request, event.when)) | {"rounds": []})
            elif isinstance(event, RequestFinished) and event.logged is not None:
                card = self._card(event.logged)
                self._finished.append(card)
                self._ended.append(card | {"rounds": _strip_of(event.logged.values)})
        self._rounds += batch.rounds
        self._missed += max(0, len(self._rounds) - WAITING_ROUNDS) if self.following else 0
        del self._rounds[WAITING_ROUNDS:]

    def _figures(self, logged: LoggedRequest) -> Json:
        """Figures of a request that change while it runs."""
        sums = logged.sums
        return {
            "tokens": logged.tokens,
            **{name: getattr(sums, name) for name in ("drafts", "drafted", "accepted", "nodes")},
            "speedup": estimate(self._log.speedup(logged)),
        }

    def _card(self, logged: LoggedRequest) -> Json:
        """A request without its rounds. What is not known yet is None."""
        request, completion = logged.request, logged.completion
        asked = request.speculation
        card: Json = {
            "id": request.id,
            "state": "running" if completion is None else "ended",
            "task": asked.task,
            "task_detected": asked.task_detected,
            "policy": asked.policy,
            "prompt_tokens": len(request.prompt),
            "max_tokens": request.sampling.max_tokens,
            **self._figures(logged),
            "admitted": self._wall(logged.started),
            **dict.fromkeys(("arrived", "first_token", "finished", "finish", "cached_tokens")),
        }
        if completion is not None:
            stats, timings = completion.stats, completion.timings
            card |= {
                "policy": stats.policy,
                "finish": completion.finish.value,
                "cached_tokens": completion.cached_tokens,
                "drafts": stats.draft_rounds,
                **{name: getattr(stats, name) for name in ("drafted", "accepted", "nodes")},
            }
            for name in ("arrived", "admitted", "first_token", "finished"):
                when = getattr(timings, name)
                card[name] = None if when is None else self._wall(when)
        return card

    def _wall(self, when: float) -> float:
        return round(when + self._wall_offset, 4)


def _windows(times: Sequence[int], batch: EventBatch, log: RequestLog) -> Iterator[tuple[int, Window]]:
    """Sums of a batch's rounds by second, whole and by task; `times` are the seconds of the rounds."""
    if not times:
        return
    seconds = sorted(set(times))
    table = batch.table
    at = np.searchsorted(np.array(seconds), np.array(times))
    finished = {one.request.id: one.request for one in batch.finished}

    def task_of(request_id: str) -> str:
        logged = log.running.get(request_id)
        request = finished.get(request_id) if logged is None else logged.request
        return (None if request is None else request.speculation.task) or OTHER

    tasks = [task_of(name) for one in batch.rounds for name in one.record.request_ids]
    names = list(dict.fromkeys(tasks))
    groups = at[table.round_index] * len(names) + np.array([names.index(task) for task in tasks], dtype=np.int64)
    by_task = table.by_row(groups, len(seconds) * len(names))
    for index, (second, sums) in enumerate(zip(seconds, table.by_round(at, len(seconds)), strict=True)):
        parts = by_task[index * len(names) : (index + 1) * len(names)]
        yield second, Window(sums, {name: part for name, part in zip(names, parts, strict=True) if part.rows})


def _phases(logged: LoggedRequest, wall_offset: float, now: float) -> list[Json]:
    """The phases that a request has reached; the last one of a running request lasts until `now`."""
    if logged.completion is None:
        starts = [("prefill", logged.started), ("decode", logged.first_round)]
        end = now - wall_offset
    else:
        timings = logged.completion.timings
        starts = [("queue", timings.arrived), ("prefill", timings.admitted), ("decode", timings.first_token)]
        end = timings.finished
    reached = [(name, start) for name, start in starts if start is not None]
    ends = [*(start for _, start in reached[1:]), end]
    return [
        {"name": name, "start": round(start + wall_offset, 4), "seconds": round(max(0.0, stop - start), 6)}
        for (name, start), stop in zip(reached, ends, strict=True)
    ]


def _by_request(rounds: Sequence[RoundEnded]) -> dict[str, list[Values]]:
    found: dict[str, list[Values]] = {}
    for one in rounds:
        for name, values in zip(one.record.request_ids, request_rounds(one.record, one.when), strict=True):
            found.setdefault(name, []).append(values)
    return found


def _strip_of(values: Iterable[Values]) -> list[list[Any]]:
    """The last rounds of a request, in `STRIP_COLUMNS`."""
    return [_column_values(one) for one in list(values)[-STRIP_ROUNDS:]]


def _column_values(values: Values) -> list[Any]:
    return [_known(value) for value in _strip(values)]


def _known(value: float) -> float | None:
    """A number for JSON: None for NaN, floats rounded to 6 digits."""
    if isinstance(value, int):
        return value
    return None if isnan(value) else round(value, 6)

"""The live feed: what the engine did in the last minutes and does now, second by second, for whoever looks.

Nothing of it is text of a prompt or an answer.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from adaptspec.arrays import FloatArray, IntArray
from adaptspec.control.tasks import OTHER
from adaptspec.decision import Reason
from adaptspec.rounds import RoundRecord
from adaptspec.telemetry.earnings import EarningsSnapshot
from adaptspec.telemetry.live_schema import Bar, DrafterSums
from adaptspec.telemetry.request_record import RequestRecord, bars_of
from adaptspec.telemetry.request_store import Batch, Finished, RequestStore, RoundEnded, Started
from adaptspec.telemetry.totals import Totals, by_proposer, gathered, tallied

HISTORY_SECONDS = 300
STRIP_ROUNDS = 120  # of one request
WAITING_ROUNDS = 4096  # until they are asked for; no engine runs this many between two updates


@dataclass
class Second:
    """Sums over the rounds that ended and the requests that finished in one second, `at` seconds since 1970.

    Only what was emitted counts as accepted; the first token of an answer, which comes with its prompt, is in no sum.
    Entropy is that of drafts, in nats.
    """

    at: int
    totals: Totals = field(default_factory=Totals)
    ended: int = 0  # requests
    off: IntArray = field(default_factory=lambda: np.zeros(1 + max(Reason), dtype=np.int64))  # depth 0, by reason
    drafters: IntArray = field(default_factory=lambda: np.zeros((0, len(DrafterSums._fields)), dtype=np.int64))
    tasks: dict[str, FloatArray] = field(default_factory=dict)  # by columns of TaskSums
    compared: list[float] | None = None  # by columns of Compared; None: nothing was estimated

    def add(self, rounds: Sequence[RoundEnded]) -> None:
        records = [one.round for one in rounds]
        depths, drafter, drafted, emitted = (
            gathered(records, name) for name in ("depths", "drafter", "drafted", "emitted")
        )
        accepted = np.minimum(gathered(records, "accepted"), emitted)
        self.totals = self.totals.plus(records)
        self.off = tallied(self.off, gathered(records, "reasons")[depths == 0])
        used = drafted > 0
        unseen = max(0, int(drafter[used].max(initial=-1)) + 1 - len(self.drafters))
        self.drafters = np.pad(self.drafters, ((0, unseen), (0, 0)))
        np.add.at(self.drafters[:, :3], drafter[used], np.stack((used, drafted, accepted), axis=1)[used])
        proposers = np.stack(by_proposer(records, len(self.drafters)), axis=1)
        self.drafters = np.pad(self.drafters, ((0, len(proposers) - len(self.drafters)), (0, 0)))
        self.drafters[:, 3:] += proposers
        nodes = gathered(records, "nodes")
        sums = (np.ones(len(depths)), used, drafted, accepted, emitted, *_entropies(records), nodes)
        tasks = [_task(one) for each in rounds for one in each.requests]
        known = {name: i for i, name in enumerate(dict.fromkeys(tasks))}
        which = np.array([known[name] for name in tasks], dtype=np.int64)
        told = np.stack([np.bincount(which, column, minlength=len(known)) for column in sums], axis=1)
        for name, more in zip(known, told, strict=True):
            self.tasks[name] = self.tasks.get(name, 0.0) + more

    def compare(self, more: Sequence[float]) -> None:
        self.compared = [round(a + b, 6) for a, b in zip(self.compared or [0.0] * len(more), more, strict=True)]

    def to_json(self) -> dict[str, Any]:
        totals = self.totals
        return {
            "at": self.at,
            "rounds": totals.rounds,
            "rows": int(totals.depths.sum()),
            "emitted": totals.emitted,
            "drafted": totals.drafted_tokens,
            "accepted": totals.accepted_tokens,
            "nodes": totals.nodes,
            "prefill_tokens": totals.prefill_tokens,
            "busy": round(totals.total_seconds, 6),
            "ended": self.ended,
            **{name: getattr(totals, name).tolist() for name in ("depths", "reasons")},
            **{name: getattr(self, name).tolist() for name in ("off", "drafters")},
            "tasks": {name: np.round(sums, 4).tolist() for name, sums in self.tasks.items()},
            "compared": self.compared,
        }


@dataclass
class Changes:
    """What has happened since the last time: seconds that differ now, requests that came and went, rounds by request.

    A second that is told again replaces what was said of it.
    """

    seconds: list[dict[str, Any]]
    started: list[dict[str, Any]]
    finished: list[dict[str, Any]]
    rounds: dict[str, list[Bar]]
    earnings: dict[str, Any]
    missed_rounds: int

    @property
    def empty(self) -> bool:
        return not (self.seconds or self.started or self.finished)


class LiveFeed:
    """Sums of the last minutes, and what is new in them. May be asked from any thread.

    What is new is kept only while `following`, and then to be asked for some times a second.
    """

    def __init__(self, store: RequestStore, earnings: Callable[[], EarningsSnapshot] = EarningsSnapshot) -> None:
        self._store = store
        self.lock = store.lock
        self._earnings = earnings
        self._told_earnings = EarningsSnapshot()
        self._seconds: deque[Second] = deque(maxlen=HISTORY_SECONDS)
        self._forget()
        self._clock = 0.0
        self._missed = 0
        self.following = False
        store.counts(self._take)

    @property
    def missed(self) -> int:
        """Rounds that came too fast, and are in no sum."""
        return self._store.missed_rounds + self._missed

    def settle(self) -> None:
        """Have all that came so far taken in; may take as long as that takes."""
        self._store.settle()

    def changes(self) -> Changes:
        with self.lock:
            seconds = [second.to_json() for second in self._changed.values()]
            earnings = self._earnings().to_json()
            told = Changes(seconds, self._came, self._went, bars_of(self._rounds), earnings, self.missed)
            self._forget()
            return told

    def _forget(self) -> None:
        """What is new from here on."""
        self._changed: dict[int, Second] = {}
        self._came: list[dict[str, Any]] = []
        self._went: list[dict[str, Any]] = []
        self._rounds: list[RoundRecord] = []

    def snapshot(self) -> dict[str, Any]:
        with self.lock:
            bars = bars_of(self._store.rounds)

            def strip(told: dict[str, Any]) -> dict[str, Any]:
                return told | {"rounds": bars.get(told["id"], [])[-STRIP_ROUNDS:]}

            return {
                "seconds": [second.to_json() for second in self._seconds],
                "running": [strip(one.running(self._clock)) for one in self._store.running.values()],
                "recent": [strip(one) for one in self._store.recent],
                "earnings": self._earnings().to_json(),
                "missed_rounds": self.missed,
            }

    def _take(self, batch: Batch) -> None:
        self._clock = batch.clock
        rounds: defaultdict[int, list[RoundEnded]] = defaultdict(list)
        ended: Counter[int] = Counter()
        for event in batch.events:
            at = int(event.when + batch.clock)
            if isinstance(event, RoundEnded):
                rounds[at].append(event)
            elif isinstance(event, Finished):
                ended[at] += 1
        for at in sorted(rounds.keys() | ended.keys()):
            second = self._second(at)
            second.ended += ended[at]
            if rounds[at]:
                second.add(rounds[at])
        self._compare()
        if self.following:
            self._keep(batch)
        else:
            self._forget()

    def _keep(self, batch: Batch) -> None:
        for event in batch.events:
            if isinstance(event, Started):
                self._came.append(event.record.card() | {"admitted": round(event.when + batch.clock, 4), "tokens": 0})
            elif isinstance(event, Finished):
                self._went.append(event.record.ended(batch.clock))
        self._rounds += batch.records
        self._missed += max(0, len(self._rounds) - WAITING_ROUNDS)
        del self._rounds[WAITING_ROUNDS:]

    def _second(self, at: int) -> Second:
        """The sums of a second; where the clock was set back, those of the newest."""
        if not self._seconds or self._seconds[-1].at < at:
            self._seconds.append(Second(at))
        newest = self._changed[self._seconds[-1].at] = self._seconds[-1]
        return newest

    def _compare(self) -> None:
        """Add what is newly estimated to the newest second."""
        now = self._earnings()
        more = now.compared_since(self._told_earnings)
        if any(more) and self._seconds:
            self._told_earnings = now
            self._second(self._seconds[-1].at).compare(more)


def _task(one: RequestRecord | None) -> str:
    return OTHER if one is None else one.request.speculation.task or OTHER


def _entropies(records: Sequence[RoundRecord]) -> tuple[FloatArray, IntArray]:
    """Sum and count of what is known of each row's drafts [N]."""
    flat = np.concatenate([record.entropy.ravel() for record in records])
    rows = np.arange(sum(len(record.rows) for record in records))
    widths = np.repeat([record.entropy.shape[1] for record in records], [len(record.rows) for record in records])
    row, known = np.repeat(rows, widths), ~np.isnan(flat)
    sums = np.bincount(row[known], flat[known], minlength=len(rows)).astype(np.float64)
    return sums, np.bincount(row[known], minlength=len(rows))

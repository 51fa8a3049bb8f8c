"""What is known of one request: when it was where, what was decided for it round by round, and how it ended.

Never its text, nor token ids, but in the request and the completion themselves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, repeat
from math import isnan, nan
from typing import Any, NamedTuple

import numpy as np

from adaptspec.decision import Reason
from adaptspec.request import Request
from adaptspec.results import Completion
from adaptspec.rounds import Branches, RoundRecord
from adaptspec.telemetry.live_schema import Bar

# So many rounds of a request are kept one by one, so many of its rare events; sums go on.
ROUNDS_KEPT = 512
EVENTS_KEPT = 32
_OFF = (Reason.GUARD, Reason.OFF)


class RareEvent(NamedTuple):
    """Something rare that happened to a request; `when` in seconds on the monotonic clock."""

    when: float
    name: str  # switch, off, probe, preempt, resume, reload
    detail: str


class RowRound(NamedTuple):
    """One round of one request.

    Confidence and entropy are of the first drafted token. `path` has the rank of each accepted token among its
    drafter's candidates, and is None of a chain, whose ranks are all 0. Of the whole round: when it `ended` on the
    monotonic clock, what it took, the rows of its `batch`, whether any of them was to draft, the tokens that `came`,
    the `goodput` that was expected and that of the `other` choice. Unknown is NaN.
    """

    depth: int
    reason: int
    drafter: int
    drafted: int
    accepted: int  # drafted tokens that were emitted
    nodes: int
    path: tuple[int, ...] | None
    confidence: float
    entropy: float
    expected: float  # tokens to be accepted
    number: int
    ended: float
    seconds: float
    batch: int
    drafting: bool
    came: int
    goodput: float
    other: float


# The same as it is kept: plain tuples of numbers are nothing that the garbage collector looks through again and again.
Row = tuple[Any, ...]
Columns = Mapping[str, tuple[Any, ...]]


def rows_of(record: RoundRecord, ended: float) -> Iterator[Row]:
    """A round as each of its requests has it."""
    unknown = repeat(nan)
    scored, expected = record.confidence.shape[1] > 0, record.expected
    whole = (
        *(record.number, ended, record.timing.total, len(record.request_ids)),
        *(bool(record.depths.any()), int(record.emitted.sum())),
        *((nan, nan) if expected is None else (expected.goodput, expected.other)),
    )
    return zip(
        record.depths.tolist(),
        record.reasons.tolist(),
        record.drafter.tolist(),
        record.drafted.tolist(),
        map(min, record.accepted.tolist(), record.emitted.tolist()),
        record.nodes.tolist(),
        repeat(None) if record.branches is None else _ranks(record, record.branches),
        record.confidence[:, 0].tolist() if scored else unknown,
        record.entropy[:, 0].tolist() if scored else unknown,
        unknown if expected is None else expected.accepted.tolist(),
        *map(repeat, whole),
        strict=False,  # what is the same for all has no end
    )


def _ranks(record: RoundRecord, branches: Branches) -> Iterator[tuple[int, ...] | None]:
    """Of each row that branched, the ranks of the tokens that were emitted."""
    emitted, branched = np.minimum(record.accepted, record.emitted), record.nodes > record.chain
    for row, (count, wide) in enumerate(zip(emitted.tolist(), branched.tolist(), strict=True)):
        yield tuple(branches.ranks(row, count)) if wide else None


@dataclass
class Forecast:
    """Sums over rounds whose policy named a goodput: tokens by what it chose and by the other choice, and what came.

    The other choice is plain decoding in rounds that drafted, and the best drafts in those that did not. `compared` are
    the seconds of those rounds of which it was known.
    """

    seconds: float = 0.0
    tokens: float = 0.0
    came: int = 0
    compared: float = 0.0
    compared_tokens: float = 0.0
    other_tokens: float = 0.0

    def add(self, goodput: float, other: float, seconds: float, came: int) -> None:
        self.seconds += seconds
        self.tokens += goodput * seconds
        self.came += came
        if not isnan(other):
            self.compared += seconds
            self.compared_tokens += goodput * seconds
            self.other_tokens += other * seconds


@dataclass
class RoundSums:
    """Sums over rounds of a request."""

    rounds: int = 0
    draft_rounds: int = 0
    reasons: Counter[int] = field(default_factory=Counter)  # rounds by reason
    off: Counter[int] = field(default_factory=Counter)  # those that were not to draft
    batch: int = 0
    expected: float = 0.0
    scored: int = 0  # rounds that said how sure the draft was of its first token
    confidence: float = 0.0
    entropy: float = 0.0
    drafting: Forecast = field(default_factory=Forecast)  # of rounds in which anybody was to draft
    plain: Forecast = field(default_factory=Forecast)

    def add(self, rounds: Columns) -> None:
        depths, reasons, drafted = rounds["depth"], rounds["reason"], rounds["drafted"]
        self.rounds += len(depths)
        self.draft_rounds += len(depths) - drafted.count(0)
        self.reasons.update(reasons)
        self.off.update(reason for reason, depth in zip(reasons, depths, strict=True) if not depth)
        self.batch += sum(rounds["batch"])
        hopes = zip(drafted, rounds["expected"], strict=True)
        self.expected += sum(expected for count, expected in hopes if count and not isnan(expected))
        confidence = [value for value in rounds["confidence"] if not isnan(value)]
        self.scored += len(confidence)
        self.confidence += sum(confidence)
        self.entropy += sum(value for value in rounds["entropy"] if not isnan(value))
        for i, goodput in enumerate(rounds["goodput"]):
            if not isnan(goodput):
                forecast = self.drafting if rounds["drafting"][i] else self.plain
                forecast.add(goodput, rounds["other"][i], rounds["seconds"][i], rounds["came"][i])


def columns_of(rows: Sequence[Row]) -> Columns:
    """Rounds by column, under the names of `RowRound`."""
    columns = zip(*rows, strict=True) if rows else [()] * len(RowRound._fields)
    return dict(zip(RowRound._fields, columns, strict=True))


@dataclass
class RoundHistory:
    """A request's decoding rounds: the first `ROUNDS_KEPT` as they were, and once it is closed, sums over all.

    While rounds come they are only put aside. Rare events are noted among those that are kept.
    """

    kept: list[Row] = field(default_factory=list)
    columns: Columns = field(default_factory=lambda: columns_of([]))  # the same, once it is closed
    sums: RoundSums = field(default_factory=RoundSums)
    events: list[RareEvent] = field(default_factory=list)
    events_dropped: int = 0
    switches: int = 0
    _later: list[Row] = field(default_factory=list)

    @property
    def truncated(self) -> bool:
        return self.sums.rounds > len(self.kept)

    def add(self, row: Row) -> None:
        if len(self.kept) < ROUNDS_KEPT:
            self.kept.append(row)
            return
        self._later.append(row)
        if len(self._later) == ROUNDS_KEPT:
            self._sum_later()

    def happened(self, when: float, name: str, detail: str) -> None:
        if len(self.events) < EVENTS_KEPT:
            self.events.append(RareEvent(when, name, detail))
        else:
            self.events_dropped += 1

    def close(self, drafters: Sequence[str]) -> None:
        """The request has ended: add up, and note what changed from round to round."""
        self._sum_later()
        self.columns = columns_of(self.kept)
        self.sums.add(self.columns)
        self._note_changes(drafters)
        self.events.sort(key=lambda event: event.when)

    def _sum_later(self) -> None:
        self.sums.add(columns_of(self._later))
        self._later = []

    def _note_changes(self, drafters: Sequence[str]) -> None:
        decisions = zip(*(self.columns[name] for name in ("depth", "reason", "drafter")), strict=True)
        for i, ((was, before, who), (depth, reason, drafter)) in enumerate(pairwise(decisions), start=1):
            began = self.columns["ended"][i] - self.columns["seconds"][i]
            if reason == Reason.PROBE and before != reason:
                self.happened(began, "probe", "speculation is tried again")
            elif reason in _OFF and before not in _OFF:
                why = "drafting measured slower" if reason == Reason.GUARD else "drafts are expected to lose"
                self.happened(began, "off", why)
            if depth and (not was or drafter != who):
                self.switches += 1
                self.happened(began, "switch", f"to {drafter_name(drafters, drafter)} at {depth}")


@dataclass
class RequestRecord:
    """One request, `admitted` on the monotonic clock, in a `row` of its own; `tokens` counts those of rounds."""

    request: Request
    row: int
    admitted: float
    tokens: int = 0
    completion: Completion | None = None
    history: RoundHistory = field(default_factory=RoundHistory)

    def card(self) -> dict[str, Any]:
        wishes = self.request.speculation
        return {
            "id": self.request.id,
            "task": wishes.task,
            "task_detected": wishes.task_detected,
            "policy": wishes.policy,
            "prompt_tokens": len(self.request.prompt),
            "max_tokens": self.request.sampling.max_tokens,
        }

    def running(self, clock: float) -> dict[str, Any]:
        """As plain data while it runs; `clock` turns monotonic seconds into seconds since 1970."""
        return self.card() | {"admitted": round(self.admitted + clock, 4), "tokens": self.tokens}

    def ended(self, clock: float) -> dict[str, Any]:
        assert self.completion is not None
        stats, timings = self.completion.stats, self.completion.timings
        times = {name: getattr(timings, name) for name in ("arrived", "admitted", "first_token", "finished")}
        return self.card() | {
            "policy": stats.policy,
            "finish": self.completion.finish.value,
            "tokens": len(self.completion.tokens),
            "cached_tokens": self.completion.cached_tokens,
            **{name: getattr(stats, name) for name in ("rounds", "draft_rounds", "drafted", "accepted", "nodes")},
            **{name: None if at is None else round(at + clock, 4) for name, at in times.items()},
        }


def bars_of(rounds: Sequence[RoundRecord]) -> dict[str, list[Bar]]:
    """The rounds of each request, oldest first."""
    bars: dict[str, list[Bar]] = {}
    for record in rounds:
        columns = zip(
            record.depths.tolist(),
            record.drafted.tolist(),
            map(min, record.accepted.tolist(), record.emitted.tolist()),
            record.emitted.tolist(),
            record.drafter.tolist(),
            record.reasons.tolist(),
            map(_mean, record.entropy.tolist()),
            *_shapes(record),
            strict=True,
        )
        for name, bar in zip(record.request_ids, map(Bar._make, columns), strict=True):
            bars.setdefault(name, []).append(bar)
    return bars


def _shapes(record: RoundRecord) -> Sequence[Sequence[Any]]:
    """Nodes, accepted ones on the main chain, those of other drafters, and nodes by depth, of each row."""
    branches, rows = record.branches, len(record.rows)
    if branches is None:
        accepted = list(map(min, record.accepted.tolist(), record.emitted.tolist()))
        return record.drafted.tolist(), accepted, [0] * rows, [None] * rows
    tree, straight = branches.tree, np.minimum(record.main_chains().accepted, record.emitted)
    others = np.bincount(tree.row[tree.drafter != record.drafter[tree.row]], minlength=rows)
    levels = [
        np.bincount(tree.depth[tree.row_nodes(row)])[1:].tolist() if wide else None
        for row, wide in enumerate((tree.counts > tree.chain).tolist())
    ]
    return tree.counts.tolist(), straight.tolist(), others.tolist(), levels


def drafter_name(drafters: Sequence[str], which: int) -> str:
    """Its name, or its number where nobody said the names."""
    return drafters[which] if which < len(drafters) else str(which)


def _mean(entropy: list[float]) -> float | None:
    known = [value for value in entropy if not isnan(value)]
    return round(sum(known) / len(known), 3) if known else None

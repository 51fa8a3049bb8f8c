"""Requests and rounds for tests of telemetry, and a stream whose time is set by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from adaptspec.control.cost_model import CostModel
from adaptspec.decision import Reason
from adaptspec.request import Request, SpeculationParams
from adaptspec.results import Completion, FinishReason, SpeculationStats, Timings
from adaptspec.rounds import DraftWork, RoundRecord, RoundWork, Timing
from adaptspec.telemetry.events import Sink
from adaptspec.telemetry.live_feed import LiveFeed
from adaptspec.telemetry.requests import RequestLog
from adaptspec.telemetry.stream import Clock, EventStream
from tests.control.helpers import record, table

Row = tuple[int, int, int, int, Reason]  # depth, drafted, accepted, emitted, reason


class ManualClock(Clock):
    """A clock that is set by hand, in seconds since 1970."""

    def __init__(self) -> None:
        self.at = 1000.0

    def now(self) -> float:
        return self.at

    def wall_offset(self) -> float:
        return 0.0


def started_stream(*sinks: Sink, clock: Clock | None = None, limit: int = 20_000) -> EventStream:
    """A stream that hands events over when it is flushed."""
    stream = EventStream(sinks, interval=3600.0, clock=clock, limit=limit)
    stream.start()
    return stream


def empty_feed() -> LiveFeed:
    """A live feed of an engine that runs nothing."""
    return LiveFeed(EventStream(), RequestLog())


def learned_costs() -> CostModel:
    """A cost model that has seen plain and drafting rounds of one and two rows, and is sure of them."""
    costs = table()
    for _ in range(100):
        for drafted in ([0], [3], [0, 0], [3, 3]):
            one = record(drafted, [0] * len(drafted))
            costs.observe(one.work, one.timing)
    return costs


def request(name: str, task: str | None = "code", policy: str = "goodput") -> Request:
    return Request(name, (1, 2, 3), speculation=SpeculationParams(policy, task))


def completion(name: str, **changes: Any) -> Completion:
    stats = SpeculationStats("goodput", 2, 1, 3, 2)
    values: dict[str, Any] = {"tokens": (7, 8), "finish": FinishReason.STOP, "timings": Timings(1.0, 2.0, 3.0, 4.0)}
    values |= {"text": "secret text", "prompt_tokens": 3, "stats": stats}
    return Completion(request_id=name, **(values | changes))


def round_of(rows: list[Row], number: int = 0, names: tuple[str, ...] | None = None) -> RoundRecord:
    """A round of these rows, which took a second; its requests are called 0, 1 ... without `names`."""
    table = np.array(rows, dtype=np.int64).reshape(-1, 5)
    zeros = np.zeros(len(rows), dtype=np.int64)
    unknown = np.full((len(rows), 0), np.nan)
    columns: dict[str, Any] = {
        name: table[:, column] for column, name in enumerate(("depths", "drafted", "accepted", "emitted", "reasons"))
    }
    return RoundRecord(
        number=number,
        request_ids=names or tuple(map(str, range(len(rows)))),
        rows=zeros,
        drafter=zeros,
        context=zeros + 5,
        confidence=unknown,
        entropy=unknown,
        work=RoundWork(len(rows), 3 + number, 0.0, (DraftWork("draft-model", 1, (1, 1), 1.0),), number),
        timing=Timing(0.25, 0.5, 1.0),
        **columns,
    )


def drafting_round(*names: str, accepted: int = 2, number: int = 0) -> RoundRecord:
    """A round in which each of these requests drafted three tokens."""
    return round_of([(3, 3, accepted, accepted + 1, Reason.POLICY)] * len(names), number, names)


@st.composite
def rows(draw: st.DrawFn) -> Row:
    depth = draw(st.integers(0, 80))
    drafted = draw(st.integers(0, depth))
    accepted = draw(st.integers(0, drafted))
    return depth, drafted, accepted, draw(st.integers(1, accepted + 1)), draw(st.sampled_from(Reason))


ROUNDS = st.lists(st.lists(rows(), max_size=5), max_size=12)

"""Trace files: JSON of the trace event format, whole or not at all."""

from __future__ import annotations

import gzip
import io
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from adaptspec.errors import ConfigError, JournalError
from adaptspec.journal import Entry
from adaptspec.telemetry.trace_events import (
    WINDOW,
    Curves,
    Event,
    counter_event,
    process_name,
    slice_event,
    track_name,
    write_trace,
    write_trace_file,
)
from adaptspec.types import RoundRecord
from tests.telemetry.logs import JOURNALS, journal

EVENTS = [
    *process_name(1, "engine"),
    *track_name((1, 2), "ü"),
    slice_event((1, 2), "round", 34_536_181_235_958, 1_234, emitted=4),
    slice_event((1, 2), "draft", 34_536_181_235_959, 1_000),
    counter_event(1, "batch", "requests", 7_000, 3),
]


def test_times_are_microseconds_to_the_nanosecond() -> None:
    """The format's unit, without rounding away what nests."""
    outer, inner = EVENTS[4:6]
    assert (outer["ts"], outer["dur"], outer["args"]) == (34_536_181_235.958, 1.234, {"emitted": 4})
    assert "args" not in inner


@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_a_file_holds_every_event(tmp_path: Path, name: str) -> None:
    """Packed where the name says so, the same bytes each time."""
    path = tmp_path / name
    assert write_trace_file(EVENTS, path) == len(EVENTS)
    data = path.read_bytes()
    plain = gzip.decompress(data) if name.endswith("gz") else data
    assert json.loads(plain) == {"displayTimeUnit": "ms", "traceEvents": EVENTS}
    write_trace_file(EVENTS, path)
    assert path.read_bytes() == data
    assert list(tmp_path.iterdir()) == [path]


def test_nothing_is_a_trace_too() -> None:
    """Of a journal that has only begun."""
    out = io.StringIO()
    assert write_trace([], out) == 0
    assert json.loads(out.getvalue())["traceEvents"] == []


def test_a_failure_leaves_the_old_file_and_no_half_of_a_new_one(tmp_path: Path) -> None:
    """Viewers would open half a trace without a word."""
    path = tmp_path / "t.json"
    path.write_text("old")

    def broken() -> Iterator[Event]:
        yield EVENTS[0]
        raise JournalError("j:7: no line of a journal")

    with pytest.raises(JournalError):
        write_trace_file(broken(), path)
    assert (path.read_text(), list(tmp_path.iterdir())) == ("old", [path])
    with pytest.raises(ConfigError, match="choose another file"):
        write_trace_file(EVENTS, tmp_path / "no" / "such" / "t.json")


CUT = {"depths": 3, "drafted": 3, "accepted": 3, "emitted": 1}

Points = dict[str, list[tuple[float, float]]]


def drawn(entries: Sequence[Entry]) -> Points:
    """Times and values of each curve."""
    points: Points = defaultdict(list)
    for event in _curve_events(entries):
        points[event["name"]].append((event["ts"], next(iter(event["args"].values()))))
    return points


def _curve_events(entries: Sequence[Entry]) -> Iterator[Event]:
    curves = Curves(1)
    for entry in entries:
        if isinstance(entry, RoundRecord):
            length = round(1e9 * entry.total_seconds)
            yield from curves.add(entry, round(1e9 * entry.ended) - length, length)
    yield from curves.end()


@given(JOURNALS)
@settings(max_examples=40, deadline=None)
def test_curves_hold_every_token_and_the_batch(entries: list[Entry]) -> None:
    """The area under tokens per second is the number of tokens; the batch is that of the rounds."""
    curves, rounds = drawn(entries), [entry for entry in entries if isinstance(entry, RoundRecord)]
    for points in curves.values():
        assert points == sorted(points, key=lambda point: point[0])
    rate = curves["tokens per second"]
    area = sum(value * (later - at) / 1e6 for (at, value), (later, _) in pairwise(rate))
    assert area == pytest.approx(sum(int(one.emitted.sum()) for one in rounds))
    assert {value for _, value in curves["batch"]} == {len(one.rows) for one in rounds} | {0}
    if any((one.drafted > 0).any() for one in rounds):
        assert all(1.0 <= value <= 8.0 for _, value in curves["acceptance length"])


def test_tokens_beyond_the_end_were_not_accepted() -> None:
    """Verification kept three, of which an end token left one: nobody got the others."""
    (one,) = [entry for entry in journal([(0, 1)], [3]) if isinstance(entry, RoundRecord)]
    cut = replace(one, **{name: np.array([value]) for name, value in CUT.items()})
    assert {value for _, value in drawn([cut])["acceptance length"]} == {2.0}


def test_a_pause_has_no_tokens() -> None:
    """It is not averaged away into the rounds around it."""
    one, two = [entry for entry in journal([(0, 2)], [1]) if isinstance(entry, RoundRecord)]
    late = replace(two, ended=one.ended + 10.0)
    rates = drawn([one, late])["tokens per second"]
    assert [rate > 0 for _, rate in rates] == [True, False, True, False]


def test_a_value_is_that_of_a_window() -> None:
    """One per round would be noise, and most of the file."""
    rounds = 200
    entries = journal([(0, rounds)], [3])
    times = [at for at, _ in drawn(entries)["tokens per second"]]
    assert len(times) < rounds / 5
    assert all(later - at >= WINDOW / 1e3 for at, later in pairwise(times[:-1]))

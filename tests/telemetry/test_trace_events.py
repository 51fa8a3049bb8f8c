"""Trace files: JSON of the trace event format, whole or not at all."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from adaptspec.errors import ConfigError, JournalError
from adaptspec.telemetry.trace_events import (
    Event,
    counter_event,
    process_name,
    slice_event,
    track_name,
    write_trace,
    write_trace_file,
)

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

"""Events of the Chrome trace event format, which Perfetto and chrome://tracing open: rounds as curves, and files.

The format has slices ("X"), counters ("C") and names of tracks ("M"), times in microseconds. Source: "Trace Event
Format" (Chromium project).
"""

from __future__ import annotations

import gzip
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from adaptspec.errors import ConfigError
from adaptspec.files import check_regular, open_file
from adaptspec.rounds import RoundRecord

Event = Mapping[str, Any]

WINDOW = 50_000_000  # nanoseconds: some tens of rounds of a small model, and no more than 20 values a second

# What the values are: viewers show it behind the name.
_UNITS = {
    "tokens per second": "output",
    "acceptance length": "tokens",
    "nodes per draft": "tokens",
    "batch": "requests",
}
# Level 6 of gzip is not worth its time here: traces are so repetitive that 3 makes them as small within a few percent.
_COMPRESSION = 3


def slice_event(track: tuple[int, int], name: str, start: int, length: int, **details: Any) -> Event:
    """Something that took time, on a track (process, thread). `start` and `length` are nanoseconds."""
    process, thread = track
    event = {"ph": "X", "pid": process, "tid": thread, "name": name, "ts": start / 1e3, "dur": length / 1e3}
    return {**event, "args": details} if details else event


def counter_event(process: int, name: str, unit: str, at: int, value: float) -> Event:
    """A curve that has this value, of so many `unit`, from `at` nanoseconds on."""
    return {"ph": "C", "pid": process, "tid": 0, "name": name, "ts": at / 1e3, "args": {unit: value}}


def process_name(process: int, name: str) -> Iterable[Event]:
    """What a group of tracks is called, and its place: processes are shown in the order of their numbers."""
    yield {"ph": "M", "pid": process, "tid": 0, "name": "process_name", "args": {"name": name}}
    yield {"ph": "M", "pid": process, "tid": 0, "name": "process_sort_index", "args": {"sort_index": process}}


def track_name(track: tuple[int, int], name: str) -> Iterable[Event]:
    """What a track is called, and its place: tracks are shown in the order of their numbers."""
    process, thread = track
    yield {"ph": "M", "pid": process, "tid": thread, "name": "thread_name", "args": {"name": name}}
    yield {"ph": "M", "pid": process, "tid": thread, "name": "thread_sort_index", "args": {"sort_index": thread}}


def write_trace(events: Iterable[Event], out: TextIO) -> int:
    """Write one JSON object, event by event as they come; how many there were."""
    encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
    out.write('{"displayTimeUnit":"ms","traceEvents":[')
    count = 0
    for count, event in enumerate(events, start=1):
        out.write(("\n" if count == 1 else ",\n") + encode(event))
    out.write("\n]}\n")
    return count


def write_trace_file(events: Iterable[Event], path: Path) -> int:
    """`write_trace` into a file, compressed if its name ends in .gz. An error leaves what there was under that name.

    Raises:
        ConfigError: it cannot be written.
    """
    draft = path.with_name(path.name + ".tmp")
    try:
        check_regular(path)
        with ExitStack() as closing:
            closing.callback(draft.unlink, missing_ok=True)
            with open(open_file(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file, _text(file, path) as out:
                count = write_trace(events, out)
            draft.replace(path)
            return count
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror}); choose another file") from error


def _text(file: io.BufferedWriter, path: Path) -> TextIO:
    if path.suffix != ".gz":
        return io.TextIOWrapper(file, encoding="utf-8")
    # Without a name and a time inside, the same journal always gives the same bytes.
    packed = gzip.GzipFile(filename="", mode="wb", compresslevel=_COMPRESSION, fileobj=file, mtime=0)
    return io.TextIOWrapper(packed, encoding="utf-8")


class Curves:
    """Sums rounds up in windows of `WINDOW` or more, whole rounds each; a pause ends a window and is one of its own.

    Tokens per second x length of a window, summed over all of them, is therefore the number of tokens emitted.
    Acceptance length is 1 + accepted per draft, as everywhere, and has no value where nothing was drafted. Nodes per
    draft are a curve from the first draft that branches.
    """

    def __init__(self, process: int) -> None:
        self._process = process
        self._start: int | None = None
        self._end = 0
        self._emitted = self._accepted = self._drafts = self._nodes = 0
        self._branched = False
        self._batch: int | None = None

    def add(self, record: RoundRecord, start: int, length: int) -> Iterator[Event]:
        """Take in a round that began at `start`; yields what has come to an end with it."""
        if self._start is not None and start - self._end > WINDOW:
            yield from self._close()
            yield self._event("tokens per second", self._end, 0.0)
        if self._start is None:
            self._start = start
        self._end = start + length
        self._emitted += int(record.emitted.sum())
        self._accepted += int(np.minimum(record.accepted, record.emitted).sum())
        self._drafts += int((record.drafted > 0).sum())
        self._nodes += int(record.nodes.sum())
        self._branched |= record.branches is not None
        if len(record.rows) != self._batch:
            self._batch = len(record.rows)
            yield self._event("batch", start, self._batch)
        if self._end - self._start >= WINDOW:
            yield from self._close()
            self._start = self._end

    def end(self) -> Iterator[Event]:
        """What remains; the curves fall to nothing."""
        yield from self._close()
        if self._batch is not None:
            yield self._event("tokens per second", self._end, 0.0)
            yield self._event("batch", self._end, 0)

    def _close(self) -> Iterator[Event]:
        if self._start is not None and self._end > self._start:
            rate = self._emitted / ((self._end - self._start) / 1e9)
            yield self._event("tokens per second", self._start, rate)
            if self._drafts:
                yield self._event("acceptance length", self._start, 1.0 + self._accepted / self._drafts)
                if self._branched:
                    yield self._event("nodes per draft", self._start, self._nodes / self._drafts)
        self._start = None
        self._emitted = self._accepted = self._drafts = self._nodes = 0

    def _event(self, name: str, at: int, value: float) -> Event:
        return counter_event(self._process, name, _UNITS[name], at, value)

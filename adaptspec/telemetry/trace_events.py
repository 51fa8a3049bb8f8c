"""Events of the Chrome trace event format, which Perfetto and chrome://tracing open, and files of them.

Knows the format: slices ("X"), counters ("C") and names of tracks ("M"), times in microseconds. It does not know what
is drawn. Source: "Trace Event Format" (Chromium project).
"""

from __future__ import annotations

import gzip
import io
import json
import os
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TextIO

from adaptspec.errors import ConfigError
from adaptspec.files import check_regular, open_file

Event = Mapping[str, Any]

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

"""The journal: everything that happened, in files that never grow too large, without ever holding up the engine."""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.errors import JournalError
from adaptspec.journal import (
    JournalHeader,
    LinesDropped,
    RequestFinished,
    RequestStarted,
    read_entries,
)
from adaptspec.request import Request, SamplingParams, SpeculationParams
from adaptspec.results import Completion, FinishReason, SpeculationStats, Timings
from adaptspec.rounds import RoundRecord
from adaptspec.telemetry.journal_writer import JournalWriter, RotatingFile
from adaptspec.telemetry.requests import RequestLog
from adaptspec.telemetry.stream import BackgroundSink, EventStream
from tests.control.helpers import record, timed
from tests.records import read_journal
from tests.telemetry.rounds import started_stream

HEADER = JournalHeader("0.1", {"name": "t"}, "f00d", ["draft-model"], ["goodput"], "goodput", ["code"], {})
REQUEST = Request(
    "r1", (5, 6, 7), SamplingParams(max_tokens=9, temperature=0.5), SpeculationParams("goodput", "code", 3)
)
COMPLETION = Completion(
    "r1",
    "secret text",
    (77, 78),
    3,
    FinishReason.LENGTH,
    SpeculationStats("goodput", 2, 1, 4, 1, nodes=9),
    Timings(1.0, 1.0, 1.5, 2.5),
    cached_tokens=1,
)


@dataclass
class Journaled:
    """A stream with a journal as its sink; nothing is written before `write`."""

    stream: EventStream
    writer: JournalWriter

    def rounds(self, *numbers: int) -> None:
        for number in numbers:
            self.stream.emit(numbered(number))

    def write(self) -> None:
        assert self.stream.flush()

    def close(self) -> None:
        self.stream.close()


def begun(path: Path, *, limit: int = 20_000, **bounds: int) -> Journaled:
    writer = JournalWriter(RotatingFile(path, **bounds))
    writer.begin(HEADER)
    return Journaled(started_stream(writer, limit=limit), writer)


def numbered(number: int, rows: int = 2) -> RoundRecord:
    return replace(record([2] * rows, [1] * rows), number=number)


def test_everything_that_happened_is_written_in_order(tmp_path: Path) -> None:
    """Header, requests, rounds; of a request what replay needs, never what it says."""
    path = tmp_path / "deep" / "j.jsonl"
    written = begun(path)
    written.stream.started(REQUEST)
    written.rounds(0, 1, 2)
    written.stream.note("not for a journal")
    written.stream.finished(REQUEST, COMPLETION)
    written.close()
    entries = list(read_entries(path))
    assert entries[:2] == [HEADER, RequestStarted("r1", "goodput", "code", 3, 9, 3, 0.5)]
    assert entries[-1] == RequestFinished("r1", "goodput", "length", 2, 2, 4, 1, 1.5, 0.0, 0.5, 2.5, 9, 1)
    rounds = list(read_journal(path))
    assert [entry.number for entry in rounds] == [0, 1, 2]
    assert np.array_equal(rounds[0].confidence, numbered(0).confidence, equal_nan=True)
    assert "secret" not in path.read_text()
    assert "77" not in path.read_text()


class HangingFile(RotatingFile):
    """A file of a disk that takes nothing until it is `released`."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.entered, self.released = threading.Event(), threading.Event()

    def write(self, lines: bytes) -> None:
        self.entered.set()
        self.released.wait()
        super().write(lines)


def test_a_disk_that_hangs_delays_the_journal_alone(tmp_path: Path) -> None:
    """Other sinks go on; the queue stays bounded, and lines that find no room are counted."""
    file = HangingFile(tmp_path / "j")
    background = BackgroundSink("journal", JournalWriter(file), limit=100, interval=0.001)
    log = RequestLog()
    stream = started_stream(log, background)
    stream.started(REQUEST)
    assert stream.flush()
    assert file.entered.wait(30)
    for number in range(300):
        stream.emit(replace(numbered(number, rows=1), request_ids=("r1",)))
    assert stream.flush()
    assert log.running["r1"].sums.rounds == 300
    assert background.dropped >= 200
    dropped = background.dropped
    file.released.set()
    stream.close()
    entries = list(read_entries(tmp_path / "j"))
    assert len([entry for entry in entries if isinstance(entry, RoundRecord)]) + dropped == 300
    assert sum(entry.lines for entry in entries if isinstance(entry, LinesDropped)) == dropped


def test_a_disk_that_hangs_for_good_is_left_behind(tmp_path: Path) -> None:
    file = HangingFile(tmp_path / "j")
    stream = started_stream(BackgroundSink("journal", JournalWriter(file), interval=0.001))
    stream.emit(numbered(0))
    stream.flush()
    assert file.entered.wait(30)
    stream.close(timeout=0.01)
    file.released.set()


def test_files_rotate_each_with_its_header_and_the_oldest_goes(tmp_path: Path) -> None:
    """The disk holds a bounded piece of the past, and every file can be read alone."""
    path = tmp_path / "j"
    written = begun(path, max_bytes=40_000, files=3)
    for number in range(600):
        written.rounds(number)
        if number % 50 == 0:
            written.write()
    written.close()
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["j", "j.1", "j.2"]
    for file in files:
        assert file.read_text().startswith('{"type":"header"')
        assert file.stat().st_size <= 40_000 + 256 * 600  # as many lines are written at once
    numbers = [entry.number for entry in read_journal(path)]
    assert numbers == list(range(numbers[0], 600))
    assert numbers[0] > 0


@given(st.binary(max_size=200), st.integers(0, 3))
@settings(max_examples=30, deadline=None)
def test_a_line_that_a_crash_cut_is_removed_at_the_next_start(tail: bytes, whole: int) -> None:
    """Otherwise the next line would run into it, and both would be lost."""
    tail = tail.replace(b"\n", b"")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "j"
        path.write_bytes(b"line\n" * whole + tail)
        file = RotatingFile(path, 10**6, 2)
        file.write(b"next\n")
        file.close()
        assert path.read_bytes() == b"line\n" * whole + b"next\n"


def test_a_restart_goes_on_in_the_same_file(tmp_path: Path) -> None:
    """Two runs, two headers, all rounds."""
    for run in range(2):
        written = begun(tmp_path / "j")
        written.rounds(run)
        written.close()
    entries = list(read_entries(tmp_path / "j"))
    assert [type(entry) for entry in entries] == [JournalHeader, RoundRecord] * 2


def test_what_comes_too_fast_is_dropped_and_said(tmp_path: Path, caplog: Any) -> None:
    """The engine never waits; the journal says how much is missing, and where."""
    written = begun(tmp_path / "j", limit=5)
    written.rounds(*range(12))
    written.write()
    written.rounds(12)
    written.close()
    entries = list(read_entries(tmp_path / "j"))
    assert entries[1] == LinesDropped(7)
    assert [entry.number for entry in entries if isinstance(entry, RoundRecord)] == [0, 1, 2, 3, 4, 12]
    assert sum(isinstance(entry, LinesDropped) for entry in entries) == 1
    assert "7 lines" in caplog.text


@contextmanager
def limited(what: int, most: int) -> Iterator[None]:
    """This process under a lower limit of the system."""
    usual = resource.getrlimit(what)
    resource.setrlimit(what, (most, usual[1]))
    try:
        yield
    finally:
        resource.setrlimit(what, usual)


def test_a_full_disk_costs_lines_and_nothing_else(tmp_path: Path, caplog: Any) -> None:
    """No half line stays; one warning; when there is room again the journal goes on and says what is missing."""
    written = begun(tmp_path / "j")
    with limited(resource.RLIMIT_FSIZE, (tmp_path / "j").stat().st_size + 100):  # a part of a line fits
        for number in range(2):
            written.rounds(number)
            written.write()
        assert len(list(read_entries(tmp_path / "j"))) == 1
    written.rounds(2)
    written.close()
    entries = list(read_entries(tmp_path / "j"))
    assert entries[1] == LinesDropped(2)
    assert [entry.number for entry in read_journal(tmp_path / "j")] == [2]
    assert caplog.text.count("cannot be written") == 1


def test_a_record_that_no_line_can_hold_is_one_that_is_missing(tmp_path: Path) -> None:
    """Infinity is no JSON; the thread must live on."""
    written = begun(tmp_path / "j")
    written.stream.emit(timed(numbered(0), float("inf")))
    written.write()
    written.rounds(1)
    written.close()
    assert [entry.number for entry in read_journal(tmp_path / "j")] == [1]
    assert written.writer.lost == 1


def test_a_file_that_cannot_be_opened_again_is_tried_later(tmp_path: Path) -> None:
    """After a rotation that failed half-way nothing is written to a file that is no longer ours."""
    file = RotatingFile(tmp_path / "j", 10, 2)
    file.write(b"aaaaaa\n")
    with limited(resource.RLIMIT_NOFILE, 3):
        for _ in range(2):
            with pytest.raises(OSError, match="Too many"):
                file.write(b"bbbbbb\n")
    file.write(b"cccccc\n")
    file.close()
    assert (tmp_path / "j").read_bytes() == b"cccccc\n"
    assert (tmp_path / "j.1").read_bytes() == b"aaaaaa\n"


def test_a_place_that_cannot_be_written_is_said_at_the_start(tmp_path: Path) -> None:
    """Not when the first round is lost."""
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match="choose another file"):
        RotatingFile(tmp_path / "file" / "j")


def _replaced(path: Path) -> None:
    path.rename(path.with_name("kept"))
    path.write_bytes(b"")


def _moved(path: Path) -> None:
    path.rename(path.with_name("kept"))


def _emptied(path: Path) -> None:
    os.truncate(path, 0)


@pytest.mark.parametrize("take", [Path.unlink, _moved, _replaced, _emptied])
def test_a_journal_that_is_taken_away_goes_on_under_its_name(tmp_path: Path, take: Callable[[Path], object]) -> None:
    """As logrotate does, in any of its ways: the new file begins with the header, and no line is lost."""
    path = tmp_path / "j"
    written = begun(path)
    written.rounds(1)
    written.write()
    take(path)
    written.rounds(2)
    written.write()
    assert [type(entry) for entry in read_entries(path)] == [JournalHeader, RoundRecord]
    assert [entry.number for entry in read_journal(path)] == [2]
    if (tmp_path / "kept").exists():
        assert [entry.number for entry in read_journal(tmp_path / "kept")] == [1]
    written.close()
    assert written.writer.lost == 0


def test_lines_are_counted_until_a_journal_can_be_opened_again(tmp_path: Path) -> None:
    """Its folder went with it, or something else stands there now; what is missing is said when it is back."""
    folder = tmp_path / "logs"
    written = begun(folder / "j")
    shutil.rmtree(folder)
    for number in (1, 2):
        written.rounds(number)
        written.write()
    assert written.writer.lost == 2
    folder.mkdir()
    os.mkfifo(folder / "j")
    written.rounds(3)
    written.write()
    assert written.writer.lost == 3
    (folder / "j").unlink()
    written.rounds(4)
    written.close()
    assert [*read_entries(folder / "j")][:2] == [HEADER, LinesDropped(3)]
    assert [entry.number for entry in read_journal(folder / "j")] == [4]

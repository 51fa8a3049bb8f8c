"""The journal: decisions and outcomes, round by round, as JSON lines in files of bounded size.

It has no text and no token ids.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from adaptspec import journal
from adaptspec.errors import JournalError
from adaptspec.files import open_file
from adaptspec.journal import JournalHeader, LinesDropped, to_line
from adaptspec.telemetry.events import Event, EventBatch, Note, RequestFinished, RequestStarted, RoundEnded
from adaptspec.telemetry.metrics import Metrics
from adaptspec.telemetry.stream import BackgroundSink, EventStream

_log = logging.getLogger(__name__)
MAX_BYTES, MAX_FILES = 64 * 2**20, 4
_CHUNK = 256  # lines that are written at once


class RotatingFile:
    """Whole lines in `path`; when it is full it becomes `path`.1, and what was that `path`.2, up to `files` in all.

    Each file begins with the header, once there is one. Not thread-safe.
    """

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES, files: int = MAX_FILES) -> None:
        """Raises JournalError: the file cannot be written."""
        self.path = path
        self._max_bytes = max_bytes
        self._files = files
        self._header = b""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = self._open()
        except OSError as error:
            raise JournalError(
                f"--journal {path}: cannot be written ({error.strerror}); choose another file"
            ) from error

    def begin(self, header: bytes) -> None:
        """Write the header now and at the beginning of every later file. Raises OSError."""
        self._header = header
        self._append(header)

    def write(self, lines: bytes) -> None:
        """Append lines, all or none of them. Raises OSError."""
        self._reopen_if_moved()
        if self._size and self._size + len(lines) > self._max_bytes:
            self._rotate()
            self._reopen_if_moved()
        self._append(lines)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1  # the system may give the number to another file, which must not be written to

    def _reopen_if_moved(self) -> None:
        """Continue in a new file if logrotate has moved, removed or emptied this one."""
        if self._descriptor >= 0:
            opened = os.fstat(self._descriptor)
            try:
                same = os.path.samestat(opened, self.path.stat())
            except FileNotFoundError:
                same = False
            if same:
                self._size = opened.st_size
            else:
                _log.info("%s was moved or removed; the journal continues in a new file of that name", self.path)
                self.close()
        if self._descriptor < 0:
            self._descriptor = self._open()
        if not self._size:
            self._append(self._header)

    def _open(self) -> int:
        descriptor = open_file(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        self._size = os.fstat(descriptor).st_size
        self._remove_half_line(descriptor)
        return descriptor

    def _remove_half_line(self, descriptor: int) -> None:
        """Remove a line that a crash has left unfinished, so that the next one does not run into it."""
        end = self._size
        while end:
            start = max(0, end - 2**16)
            found = os.pread(descriptor, end - start, start).rfind(b"\n")
            if found >= 0:
                end = start + found + 1
                break
            end = start
        if end != self._size:
            os.ftruncate(descriptor, end)
            self._size = end

    def _append(self, data: bytes) -> None:
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(self._descriptor, left) :]
        except OSError:
            # The disk is full: the written part must not become half a line.
            os.ftruncate(self._descriptor, self._size)
            raise
        self._size += len(data)

    def _rotate(self) -> None:
        self.close()
        for number in range(self._files - 1, 0, -1):
            older = self.path if number == 1 else self.path.with_name(f"{self.path.name}.{number - 1}")
            if older.exists():
                os.replace(older, self.path.with_name(f"{self.path.name}.{number}"))
        if self._files == 1:
            self.path.unlink()


class JournalWriter:
    """A `Sink` that writes requests and rounds to a file.

    `lost` lines could not be written: the disk was full, or the folder gone. The file says where lines are missing.
    """

    def __init__(self, file: RotatingFile) -> None:
        self._file = file
        self._dropped = 0  # before they came here
        self._recorded = 0  # missing lines that the file has on record
        self._failing = False
        self.lost = 0

    def begin(self, header: JournalHeader) -> None:
        """Write what the engine runs on, before the first batch. Raises JournalError: the file cannot be written."""
        try:
            self._file.begin(_encoded([header]))
        except OSError as error:
            raise JournalError(f"--journal {self._file.path}: cannot be written ({error.strerror})") from error

    def handle(self, batch: EventBatch) -> None:
        self._dropped = batch.dropped
        entries = [entry for event in batch.events if (entry := _entry(event)) is not None]
        for start in range(0, len(entries), _CHUNK):
            self._write(entries[start : start + _CHUNK])

    def close(self, timeout: float) -> None:  # noqa: ARG002 (a write does not wait)
        if missing := self._dropped + self.lost:
            _log.warning("%d lines of %s were not written in all", missing, self._file.path)
        self._file.close()

    def _write(self, entries: Sequence[journal.Entry]) -> None:
        missing = self._dropped + self.lost - self._recorded
        try:
            self._file.write(_encoded([LinesDropped(missing), *entries] if missing else entries))
        except (OSError, ValueError) as error:
            self.lost += len(entries)
            if not self._failing:
                _log.warning("%s cannot be written (%s); lines are dropped until it can", self._file.path, error)
            self._failing = True
        else:
            self._recorded += missing
            self._failing = False


def open_journal(path: Path, stream: EventStream, metrics: Metrics) -> JournalWriter:
    """Have a stream's events written to a file, on a thread of its own: a disk that hangs delays nothing else.

    Raises JournalError: the file cannot be written.
    """
    writer = JournalWriter(RotatingFile(path))
    background = BackgroundSink("journal", writer, events=(RequestStarted, RoundEnded, RequestFinished))
    stream.add(background)
    metrics.watch_count(
        "adaptspec_journal_dropped_lines",
        "Lines of the journal that were not written",
        lambda: stream.lost(background) + background.dropped + writer.lost,
    )
    return writer


def _encoded(entries: Sequence[journal.Entry]) -> bytes:
    return "".join(to_line(entry) + "\n" for entry in entries).encode()


def _entry(event: Event) -> journal.Entry | None:
    match event:
        case RoundEnded():
            return event.record
        case RequestStarted():
            return _started(event)
        case RequestFinished():
            return _finished(event)
        case Note():
            return None


def _started(event: RequestStarted) -> journal.RequestStarted:
    request, speculation = event.request, event.request.speculation
    return journal.RequestStarted(
        id=request.id,
        policy=speculation.policy,
        task=speculation.task,
        prompt_tokens=len(request.prompt),
        max_tokens=request.sampling.max_tokens,
        max_depth=speculation.max_depth,
        temperature=request.sampling.temperature,
    )


def _finished(event: RequestFinished) -> journal.RequestFinished:
    completion = event.completion
    stats, timings = completion.stats, completion.timings
    return journal.RequestFinished(
        id=completion.request_id,
        policy=stats.policy,
        finish=completion.finish.value,
        tokens=len(completion.tokens),
        rounds=stats.rounds,
        drafted=stats.drafted,
        accepted=stats.accepted,
        seconds=timings.finished - timings.arrived,
        queued=None if timings.admitted is None else timings.admitted - timings.arrived,
        to_first_token=None if timings.first_token is None else timings.first_token - timings.arrived,
        ended=timings.finished,
        nodes=stats.nodes,
        cached_tokens=completion.cached_tokens,
    )

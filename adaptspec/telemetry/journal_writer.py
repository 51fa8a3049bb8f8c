"""The journal: what was decided and observed, round by round, as JSON lines in files of bounded size.

Never writes text or token ids.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from adaptspec.errors import JournalError
from adaptspec.files import open_file
from adaptspec.journal import Entry, JournalHeader, LinesDropped, RequestFinished, RequestStarted, to_line
from adaptspec.request import Request
from adaptspec.results import Completion
from adaptspec.telemetry.bounded_queue import BoundedQueue
from adaptspec.telemetry.request_store import Batch, Event, Finished, RequestStore, RoundEnded, Started

_log = logging.getLogger(__name__)


class RotatedFile:
    """Whole lines in `path`; when it is full it becomes `path`.1, and what was that `path`.2, up to `files` in all.

    Each file begins with the header, once there is one. Not thread-safe.
    """

    def __init__(self, path: Path, max_bytes: int, files: int) -> None:
        """Raises JournalError: the file cannot be written."""
        self._path = path
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
        """Write the header here, and at the beginning of every file to come. Raises OSError."""
        self._header = header
        self._append(header)

    def write(self, lines: bytes) -> None:
        """Append lines, all or none of them. Raises OSError."""
        self._follow()
        if self._size and self._size + len(lines) > self._max_bytes:
            self._rotate()
            self._follow()
        self._append(lines)

    def _follow(self) -> None:
        """Go on in a new file where ours has been moved, removed or emptied, as logrotate does."""
        if self._descriptor >= 0:
            ours = os.fstat(self._descriptor)
            try:
                kept = os.path.samestat(ours, self._path.stat())
            except FileNotFoundError:
                kept = False
            if kept:
                self._size = ours.st_size
            else:
                _log.info("%s was moved or removed; the journal goes on in a new file of that name", self._path)
                self.close()
        if self._descriptor < 0:
            self._descriptor = self._open()
        if not self._size:
            self._append(self._header)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1  # a number that the system may give to another file must not be written to

    def _open(self) -> int:
        descriptor = open_file(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        self._size = os.fstat(descriptor).st_size
        self._cut(descriptor)
        return descriptor

    def _cut(self, descriptor: int) -> None:
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
            # The disk is full: what of it was written must not become half a line.
            os.ftruncate(self._descriptor, self._size)
            raise
        self._size += len(data)

    def _rotate(self) -> None:
        self.close()
        for number in range(self._files - 1, 0, -1):
            older = self._path if number == 1 else self._path.with_name(f"{self._path.name}.{number - 1}")
            if older.exists():
                os.replace(older, self._path.with_name(f"{self._path.name}.{number}"))
        if self._files == 1:
            self._path.unlink()


class Journal:
    """Writes down everything that the store says. What was dropped, or the disk did not take, is counted and said.

    On a thread of its own: a disk that hangs holds up nobody else.
    """

    _CHUNK = 256  # entries made into lines at once

    def __init__(
        self,
        store: RequestStore,
        path: Path,
        *,
        max_bytes: int = 64 * 2**20,
        files: int = 4,
        limit: int = 20_000,
        pause: float = 0.25,
        file: RotatedFile | None = None,
    ) -> None:
        """`limit` entries wait at most, for `pause` seconds; `file` is written in place of one at `path`.

        Raises JournalError: the file cannot be written.
        """
        self._file = file or RotatedFile(path, max_bytes, files)
        self._path = path
        self._store = store
        self._queue = BoundedQueue[Entry]("journal", self._write, limit=limit, pause=pause)
        self._lost = self._told = 0
        self._failing = False
        store.writes(self._take)

    @property
    def dropped(self) -> int:
        return self._store.missing(self._take) + self._queue.dropped + self._lost

    def begin(self, header: JournalHeader) -> None:
        """Say what the engine runs on, before the store starts."""
        try:
            self._file.begin(_bytes([header]))
        except OSError as error:
            raise JournalError(f"--journal {self._path}: cannot be written ({error.strerror})") from error
        self._queue.start()

    def settle(self) -> None:
        """Have everything written that the store has said so far."""
        self._queue.work()

    def close(self) -> None:
        """After the store's own end."""
        self._queue.close()
        if self.dropped:
            _log.warning("%d lines of %s were dropped in all", self.dropped, self._path)
        self._file.close()

    def _take(self, batch: Batch) -> None:
        for event in batch.events:
            entry = _entry(event)
            if entry is not None:
                self._queue.put(entry)

    def _write(self, entries: Sequence[Entry]) -> None:
        for begin in range(0, len(entries), self._CHUNK):
            chunk = entries[begin : begin + self._CHUNK]
            missing = self.dropped - self._told
            try:
                self._file.write(_bytes([LinesDropped(missing), *chunk] if missing else chunk))
            except (OSError, ValueError) as error:
                self._lost += len(chunk)
                if not self._failing:
                    _log.warning("%s cannot be written (%s); lines are dropped until it can", self._path, error)
                self._failing = True
            else:
                self._told += missing
                self._failing = False


def _bytes(entries: Sequence[Entry]) -> bytes:
    return "".join(to_line(entry) + "\n" for entry in entries).encode()


def _entry(event: Event) -> Entry | None:
    if isinstance(event, RoundEnded):
        return event.round
    if isinstance(event, Started):
        return _started(event.record.request)
    if isinstance(event, Finished) and event.record.completion is not None:
        return _finished(event.record.completion)
    return None


def _started(request: Request) -> RequestStarted:
    wishes = request.speculation
    return RequestStarted(
        id=request.id,
        policy=wishes.policy,
        task=wishes.task,
        prompt_tokens=len(request.prompt),
        max_tokens=request.sampling.max_tokens,
        max_depth=wishes.max_depth,
        temperature=request.sampling.temperature,
    )


def _finished(completion: Completion) -> RequestFinished:
    stats, timings = completion.stats, completion.timings
    return RequestFinished(
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

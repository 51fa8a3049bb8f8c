"""The end of a journal: what belongs to its last seconds. Knows when entries happened, and nothing else of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from adaptspec.records import Entry, JournalHeader, RequestFinished, RequestStarted
from adaptspec.types import RoundRecord


def latest(entries: Iterable[Entry], seconds: float) -> Iterator[Entry]:
    """Entries of the last `seconds` before the newest one, after the header they are under and the requests that ran.

    Goes through the journal once, and holds no more than what it gives.
    """
    header: JournalHeader | None = None
    running: dict[str, RequestStarted] = {}
    held: deque[tuple[float, Entry]] = deque()
    clock = now = 0.0
    for entry in entries:
        if isinstance(entry, JournalHeader):
            clock = entry.clock
        elif isinstance(entry, (RoundRecord, RequestFinished)):
            now = max(now, clock + entry.ended)
        held.append((now, entry))
        while held[0][0] < now - seconds:
            _, gone = held.popleft()
            if isinstance(gone, JournalHeader):
                header = gone
            elif isinstance(gone, RequestStarted):
                running[gone.id] = gone
            elif isinstance(gone, RequestFinished):
                running.pop(gone.id, None)
    if header is not None:
        yield header
    yield from running.values()
    for _, entry in held:
        yield entry

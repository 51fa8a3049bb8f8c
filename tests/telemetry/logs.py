"""Journals for tests of what is drawn from them: of a server whose rounds and requests are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hypothesis import strategies as st

from adaptspec.journal import Entry, JournalHeader, RequestFinished, RequestStarted
from tests.control.helpers import record

HEADER = JournalHeader(
    "0.1", {"name": "t"}, "f00d", ["draft-model", "ngram"], ["goodput"], "goodput", ["code"], {}, clock=1e9
)


@dataclass
class Served:
    """One request as the server would count it."""

    started: float
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    tokens: int = 1


def journal(lives: Sequence[tuple[int, int]], depths: Sequence[int], *, begin: float = 5.0) -> list[Entry]:
    """The journal of requests that join before a round and decode for so many: (round, rounds) each.

    `depths` are drafted in turn, half of each is accepted. Between two rounds the engine is idle for 0.1 ms.
    """
    entries: list[Entry] = [HEADER]
    running: dict[str, Served] = {}
    now, turn = begin, 0
    for number in range(max(start + length for start, length in lives)):
        for i, (start, _) in enumerate(lives):
            if start == number:
                running[f"r{i}"] = Served(now)
                entries.append(RequestStarted(f"r{i}", "goodput", "code", 4, 99, None, 0.0))
        if running:
            drafted = [depths[(turn + i) % len(depths)] for i in range(len(running))]
            turn += len(drafted)
            made = record(drafted, [depth // 2 for depth in drafted])
            now += made.total_seconds + 1e-4
            entries.append(replace(made, number=number, request_ids=tuple(running), ended=now))
            for row, served in enumerate(running.values()):
                served.rounds += 1
                served.drafted += drafted[row]
                served.accepted += drafted[row] // 2
                served.tokens += drafted[row] // 2 + 1
        for i, (start, length) in enumerate(lives):
            if start + length == number + 1:
                entries.append(_finish(f"r{i}", running.pop(f"r{i}"), now + 2e-5))
    return entries


def _finish(name: str, served: Served, now: float) -> RequestFinished:
    """It waited for 2 ms, and read its prompt in 1 ms."""
    whole = now - served.started + 0.003
    counts = (served.tokens, served.rounds, served.drafted, served.accepted)
    return RequestFinished(name, "goodput", "length", *counts, whole, 0.002, 0.003, now)


JOURNALS = st.builds(
    journal,
    st.lists(st.tuples(st.integers(0, 12), st.integers(1, 12)), min_size=1, max_size=5),
    st.lists(st.integers(0, 7), min_size=1, max_size=5),
)

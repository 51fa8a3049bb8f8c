"""Streams: which requests of a tape come in which order, and how many run at once as they go by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from adaptspec.errors import TapeError
from adaptspec.simulation.tape import Tape


@dataclass(frozen=True)
class Schedule:
    """How many requests run at once: stages of equal length, counted in requests. (16,) is always 16;
    (1, 16, 1) has a crowd in the middle third.
    """

    stages: tuple[int, ...] = (1,)

    def __post_init__(self) -> None:
        if not self.stages or min(self.stages) < 1:
            raise TapeError("a batch-size schedule needs at least one stage, each of at least 1 row, such as 1-16-1")

    @property
    def fixed(self) -> int | None:
        """The batch size, if it never changes."""
        return self.stages[0] if len(set(self.stages)) == 1 else None

    def __str__(self) -> str:
        return "-".join(map(str, self.stages))

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """From "16" or "1-16-1".

        Raises:
            TapeError: it is neither.
        """
        try:
            return cls(tuple(int(part) for part in text.split("-")))
        except ValueError:
            raise TapeError(f"batch size {text!r}: give a number, or numbers with dashes such as 1-16-1") from None


@dataclass(frozen=True)
class Stream:
    """Requests of a tape, by index, in the order in which they come; each may come several times."""

    tape: Tape
    order: tuple[int, ...]
    schedule: Schedule = Schedule()

    @property
    def most_rows(self) -> int:
        """The largest batch."""
        return max(self.schedule.stages)

    def rows_at(self, started: int) -> int:
        """How many may run once `started` requests have started."""
        stages = self.schedule.stages
        return stages[min(started * len(stages) // max(len(self.order), 1), len(stages) - 1)]


def in_turn(tape: Tape) -> list[int]:
    """One request of each task, then the next of each: every neighbour is of another task."""
    by_task = _by_task(tape)
    longest = max(len(requests) for requests in by_task)
    return [requests[i] for i in range(longest) for requests in by_task if i < len(requests)]


def in_phases(tape: Tape) -> list[int]:
    """All requests of a task, then all of the next: the traffic shifts."""
    return [request for requests in _by_task(tape) for request in requests]


def stream(tape: Tape, schedule: Schedule, order: Sequence[int] | None = None, least: int = 0) -> Stream:
    """The tape's requests (in this order, or its own) under a schedule, over and over until there are enough of them:

    at least `least`, and at least four for each row of the largest batch.
    """
    once = list(range(len(tape))) if order is None else list(order)
    wanted = max(least, len(once), 4 * max(schedule.stages) if max(schedule.stages) > 1 else 0)
    rounds = -(-wanted // len(once))
    return Stream(tape, tuple(once * rounds)[:wanted], schedule)


def _by_task(tape: Tape) -> list[list[int]]:
    groups: dict[str, list[int]] = {}
    for request, task in enumerate(tape.tasks):
        groups.setdefault(task, []).append(request)
    return list(groups.values())

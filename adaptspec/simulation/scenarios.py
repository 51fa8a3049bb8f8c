"""Scenarios: which requests of a tape run in which order, how many at once, and when the traffic shifts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from adaptspec.arrays import FloatArray
from adaptspec.errors import TapeError
from adaptspec.simulation.tape import Tape

IN_TURN, IN_PHASES, WRONG = "mixed, in turn", "mixed, in phases", "wrong drafts"
# In a stream of shorter phases policies cannot settle, and each request counts by itself.
_MIN_PHASE_REQUESTS = 2
# A policy has recovered once it is within this share of the best setting's goodput.
_NEAR = 0.05


@dataclass(frozen=True)
class Schedule:
    """How many requests run at once, in stages of equally many requests; (1, 16, 1) has a crowd in the middle.

    Raises TapeError: there is no stage, or one without a row.
    """

    stages: tuple[int, ...] = (1,)

    def __post_init__(self) -> None:
        if not self.stages or min(self.stages) < 1:
            raise TapeError("a batch-size schedule needs at least one stage, each of at least 1 row, such as 1-16-1")

    @property
    def fixed(self) -> int | None:
        """The batch size where all stages have the same."""
        return self.stages[0] if len(set(self.stages)) == 1 else None

    def __str__(self) -> str:
        return "-".join(map(str, self.stages))

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """From "16" or "1-16-1". Raises TapeError: it is neither."""
        try:
            return cls(tuple(int(part) for part in text.split("-")))
        except ValueError:
            raise TapeError(f"batch size {text!r}: give a number, or numbers with dashes such as 1-16-1") from None


@dataclass(frozen=True)
class Stream:
    """Requests of a tape, by index, in the order of their arrival; a request may arrive several times."""

    tape: Tape
    order: tuple[int, ...]
    schedule: Schedule = Schedule()

    @property
    def max_rows(self) -> int:
        """The largest batch size."""
        return max(self.schedule.stages)

    def rows_at(self, started: int) -> int:
        """How many may run once `started` requests have started."""
        stages = self.schedule.stages
        return stages[min(started * len(stages) // max(len(self.order), 1), len(stages) - 1)]


def in_turn(tape: Tape) -> list[int]:
    """One request of each task, then the next of each: neighbours are of different tasks."""
    by_task = _by_task(tape)
    longest = max(len(requests) for requests in by_task)
    return [requests[i] for i in range(longest) for requests in by_task if i < len(requests)]


def in_phases(tape: Tape) -> list[int]:
    """All requests of a task, then all of the next: the traffic shifts."""
    return [request for requests in _by_task(tape) for request in requests]


def stream(tape: Tape, schedule: Schedule, order: Sequence[int] | None = None, min_requests: int = 0) -> Stream:
    """The tape's requests in this order (None: its own), repeated until there are enough.

    That is at least `min_requests`, and at least four for each row of the largest batch.
    """
    once = list(range(len(tape))) if order is None else list(order)
    wanted = max(min_requests, len(once), 4 * max(schedule.stages) if max(schedule.stages) > 1 else 0)
    repeats = -(-wanted // len(once))
    return Stream(tape, tuple(once * repeats)[:wanted], schedule)


@dataclass(frozen=True)
class Scenario:
    """A situation in which policies are compared. `work` is a task's name, or how tasks are mixed."""

    work: str
    stream: Stream

    @property
    def batch(self) -> str:
        """The schedule in words."""
        return str(self.stream.schedule)

    @property
    def mixed(self) -> bool:
        """Whether it mixes all tasks."""
        return self.work in (IN_TURN, IN_PHASES)


def task_scenarios(tape: Tape, schedules: Sequence[Schedule]) -> list[Scenario]:
    """Each task by itself at each batch size, and all tasks with drafts that are never right."""
    tasks = [(task or "unknown", tape.of_task(task)) for task in dict.fromkeys(tape.tasks)]
    wrong = tape.always_wrong()
    return [
        *(Scenario(name, stream(part, schedule)) for schedule in schedules for name, part in tasks),
        *(Scenario(WRONG, stream(wrong, schedule, in_turn(wrong))) for schedule in schedules),
    ]


def mixed_scenarios(tape: Tape, schedules: Sequence[Schedule]) -> list[Scenario]:
    """All tasks in one stream: one request of each in turn, and one task after the other."""
    orders = {IN_TURN: in_turn(tape), IN_PHASES: in_phases(tape)}
    return [Scenario(name, stream(tape, schedule, order)) for schedule in schedules for name, order in orders.items()]


@dataclass(frozen=True)
class Phase:
    """Requests `start` to `end` of a stream's order, of one task and one batch size."""

    start: int
    end: int
    rows: int

    def of(self, stream: Stream) -> Stream:
        """The phase as a stream."""
        return Stream(stream.tape, stream.order[self.start : self.end], Schedule((self.rows,)))


def phases_of(stream: Stream) -> tuple[Phase, ...]:
    """The phases in order; none where traffic does not shift, or shifts with every other request."""
    kinds = [(stream.tape.tasks[request], stream.rows_at(i)) for i, request in enumerate(stream.order)]
    starts = [i for i, kind in enumerate(kinds) if not i or kind != kinds[i - 1]]
    phases = [Phase(start, end, kinds[start][1]) for start, end in zip(starts, [*starts[1:], len(kinds)], strict=True)]
    if len(phases) < 2 or len(kinds) < _MIN_PHASE_REQUESTS * len(phases):
        return ()
    return tuple(phases)


def recovery_tokens(phases: Sequence[Phase], spent: FloatArray, best: FloatArray, tokens: FloatArray) -> list[float]:
    """For each phase but the first: output tokens until the rest of it takes at most 5 % longer than the best setting.

    By whole requests, one at a time: `spent` and `best` [N] are their seconds under the policy and at the phase's best
    fixed setting, `tokens` [N] their output. A phase that ends before that counts in full.
    """
    found = []
    for phase in phases[1:]:
        here = slice(phase.start, min(phase.end, len(spent)))
        remaining, least = (part[here][::-1].cumsum()[::-1] for part in (spent, best))
        far = (remaining * (1.0 - _NEAR) > least).nonzero()[0]  # requests from which on the rest is not near
        found.append(float(tokens[here][: far[-1] + 1 if len(far) else 0].sum()))
    return found


def _by_task(tape: Tape) -> list[list[int]]:
    groups: dict[str, list[int]] = {}
    for request, task in enumerate(tape.tasks):
        groups.setdefault(task, []).append(request)
    return list(groups.values())

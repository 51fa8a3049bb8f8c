"""Cells: the situations that policies are compared in, each a stream of requests at some batch sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from adaptspec.simulation.scenarios import Schedule, Stream, in_phases, in_turn, stream
from adaptspec.simulation.tape import Tape

IN_TURN, IN_PHASES, WRONG = "mixed, in turn", "mixed, in phases", "wrong drafts"


@dataclass(frozen=True)
class Cell:
    """One situation. `work` is a task's name, or says how tasks are mixed."""

    work: str
    stream: Stream

    @property
    def batch(self) -> str:
        """The batch size, or its stages with dashes."""
        return str(self.stream.schedule)

    @property
    def mixed(self) -> bool:
        """Whether several tasks share the stream."""
        return self.work in (IN_TURN, IN_PHASES)


def task_cells(tape: Tape, schedules: Sequence[Schedule]) -> list[Cell]:
    """Each task by itself at each batch size, and all of them with drafts that are never right."""
    tasks = [(task or "unknown", tape.of_task(task)) for task in dict.fromkeys(tape.tasks)]
    wrong = tape.always_wrong()
    return [
        *(Cell(name, stream(own, schedule)) for schedule in schedules for name, own in tasks),
        *(Cell(WRONG, stream(wrong, schedule, in_turn(wrong))) for schedule in schedules),
    ]


def mixed_cells(tape: Tape, schedules: Sequence[Schedule]) -> list[Cell]:
    """All tasks in one stream: one request of each in turn, and one task after the other."""
    orders = {IN_TURN: in_turn(tape), IN_PHASES: in_phases(tape)}
    return [Cell(name, stream(tape, schedule, order)) for schedule in schedules for name, order in orders.items()]

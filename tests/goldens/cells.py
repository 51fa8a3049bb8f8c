"""The cells that goldens cover, each at five splits of the tape, and what a policy earns in one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np

from adaptspec.control.language.build import load_policy_spec
from adaptspec.control.language.library import find_policy
from adaptspec.replay.cells import IN_PHASES, IN_TURN, WRONG
from adaptspec.replay.costs import load_costs
from adaptspec.replay.simulator import replay
from adaptspec.replay.streams import Schedule, Stream, in_phases, in_turn, stream
from adaptspec.replay.tape import Tape
from adaptspec.replay.tape_file import find_tape, load_tape

SPLITS = 5
ROUNDS = 400  # of plain decoding, at least: a stream's requests come again until it lasts as long
MACHINES = ("cpu-2-cores", "gpu-8b")
BATCHES = ("1", "4", "16", "64")
CROWD = "1-16-1"  # one row, then sixteen, then one: batch sizes that change within a stream


@dataclass(frozen=True, order=True)
class Cell:
    """A kind of work at a batch size, with the costs of a machine."""

    machine: str
    work: str
    batch: str

    @classmethod
    def parse(cls, text: str) -> Cell:
        """From what `str` gives."""
        return cls(*(part.strip() for part in text.split("|")))

    def __str__(self) -> str:
        return f"{self.machine} | {self.work} | {self.batch}"


@cache
def tape() -> Tape:
    """The tape that ships."""
    return load_tape(find_tape("bundled"))


def cells() -> Iterator[Cell]:
    """Every task, all of them mixed in both ways, and drafts that are never right, at every batch size."""
    works = (*dict.fromkeys(tape().tasks), IN_TURN, IN_PHASES, WRONG)
    for machine in MACHINES:
        for work in works:
            yield from (Cell(machine, work, batch) for batch in BATCHES)
        yield Cell(machine, IN_TURN, CROWD)


@cache
def split(number: int) -> Tape:
    """One request in five of each task and temperature: splits share none."""
    whole = tape()
    kinds = np.array([f"{task} {heat}" for task, heat in zip(whole.tasks, whole.temperatures, strict=True)])
    chosen = (np.flatnonzero(kinds == kind)[number::SPLITS].tolist() for kind in dict.fromkeys(kinds.tolist()))
    return whole.take(sorted(request for requests in chosen for request in requests))


def stream_of(cell: Cell, number: int) -> Stream:
    """The requests of a cell in one of the splits, over and over until `ROUNDS` plain rounds have run."""
    own = split(number)
    orders = {IN_TURN: in_turn, IN_PHASES: in_phases, WRONG: in_turn}
    if cell.work == WRONG:
        own = own.always_wrong()
    elif cell.work not in orders:
        own = own.of_task(cell.work)
    order = orders[cell.work](own) if cell.work in orders else None
    schedule = Schedule.parse(cell.batch)
    rows = float(np.mean(schedule.stages))
    return stream(own, schedule, order, least=int(ROUNDS * rows / np.mean(own.lengths)))


def goodput(policy: str, cell: Cell, number: int) -> float:
    """Tokens per simulated second of a shipped policy, or of one in a file."""
    spec = load_policy_spec(find_policy(policy))
    return replay(spec, stream_of(cell, number), load_costs(cell.machine)).goodput

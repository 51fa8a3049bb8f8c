"""Cells in which shipped policies are measured on a tape of SmolLM2-135M-Instruct, and what a policy earns in one.

`smollm2.npz` holds ten tasks with ten held-out prompts each, greedy and at temperature 0.8, up to 128 tokens; drafters
are the model itself in 8 bits, n-grams and counts. It holds no text. To record it again (SMOLLM2: a folder with the
model in float32, made from its GGUF by `transformers`; PROMPTS: a folder of JSONL with `task`, `source`, `prompt`):

    adaptspec bench record --model SMOLLM2 --draft quantized:int8 --dtype float32 --max-model-len 2048 \\
      --workloads PROMPTS --prompts 10 --tokens 128 --temperatures 0,0.8 --out tests/policies/smollm2.npz

On twenty short texts the model in 8 bits agreed with itself at 97.6 % of greedy and 95.1 % of sampled positions, its
first 24 of 30 layers alone at 35 % and 33 %, the first 15 at 10 % and 13 %, the first 6 at 6 % and 8 %. So the tape has
the model in 8 bits.

The machines are the shipped ones of this model. In float32 and, on a CPU with AMX, bfloat16 a draft of the model in 8
bits can pay; it takes as long as the target in float16 and longer than by llama.cpp, and only lookups can.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from adaptspec.control.language.library import find_policy, shipped_policies
from adaptspec.control.language.loader import load_policy_spec
from adaptspec.control.language.spec import PolicySpec
from adaptspec.simulation.machine import Machine, load_machine
from adaptspec.simulation.scenarios import IN_PHASES, IN_TURN, WRONG, Schedule, Stream, in_phases, in_turn, stream
from adaptspec.simulation.simulator import replay, static_spec
from adaptspec.simulation.tape import Tape
from adaptspec.simulation.tape_file import load_tape

FOLDER = Path(__file__).parent
SPLITS = 5
LEAST_ROUNDS = 400  # of plain decoding: the requests of a stream are repeated until it lasts that long
TABLES = ("epyc-float32", "epyc-float16", "xeon-bfloat16", "xeon-q4_1", "epyc-q4_1")
GREEDY, SAMPLED = "mixed, greedy", "mixed, at 0.8"
MIXED = (IN_TURN, IN_PHASES, WRONG)  # all tasks together
TEMPERATURES = {GREEDY: 0.0, SAMPLED: 0.8}  # all other kinds of work have requests of both
CROWD = "1-16-1"  # one row, then sixteen, then one
BATCHES = {
    IN_TURN: ("4", "16", CROWD),
    IN_PHASES: ("4",),
    GREEDY: ("1",),
    SAMPLED: ("1",),
    WRONG: ("4",),
}
TASK_BATCHES = ("1",)
FIXED_DEPTHS = (1, 3, 7)
# The tape has no candidates of lookahead: what it guesses depends on the passes in which it guessed.
NOT_ON_TAPE = ("lookahead",)


@dataclass(frozen=True, order=True)
class Cell:
    """A kind of work (a task, or a way of mixing them) at a batch size, with a cost table."""

    table: str
    work: str
    batch: str

    @classmethod
    def parse(cls, text: str) -> Cell:
        """The inverse of `str`."""
        return cls(*(part.strip() for part in text.split("|")))

    def __str__(self) -> str:
        return f"{self.table} | {self.work} | {self.batch}"


@cache
def tape() -> Tape:
    """The recorded tape."""
    return load_tape(FOLDER / "smollm2.npz")


@cache
def costs(table: str) -> Machine:
    """The shipped machine of this processor and precision."""
    processor, precision = table.split("-")
    return load_machine(f"smollm2-{precision}-{processor}")


def policies() -> list[str]:
    """Names of the shipped policies that the tape can replay."""
    return sorted({path.stem for path in shipped_policies()} - {*NOT_ON_TAPE})


def cells() -> Iterator[Cell]:
    """All cells: each task alone, tasks mixed, and drafts that are never right, with each cost table."""
    batches = dict.fromkeys(tape().tasks, TASK_BATCHES) | BATCHES
    for table in TABLES:
        for work, sizes in batches.items():
            yield from (Cell(table, work, batch) for batch in sizes)


@cache
def split(number: int) -> Tape:
    """One request in five of each task and temperature; splits have no request in common."""
    whole = tape()
    kinds = np.array([f"{task} {heat}" for task, heat in zip(whole.tasks, whole.temperatures, strict=True)])
    chosen = (np.flatnonzero(kinds == kind)[number::SPLITS].tolist() for kind in dict.fromkeys(kinds.tolist()))
    return whole.take(sorted(request for requests in chosen for request in requests))


def stream_of(cell: Cell, number: int) -> Stream:
    """The requests of a cell from a split, repeated until plain decoding takes `LEAST_ROUNDS`."""
    own = split(number)
    if cell.work == WRONG:
        own = own.always_wrong()
    elif cell.work in TEMPERATURES:
        own = own.at_temperature(TEMPERATURES[cell.work])
    elif cell.work not in MIXED:
        own = own.of_task(cell.work)
    order = in_phases(own) if cell.work == IN_PHASES else in_turn(own)
    schedule = Schedule.parse(cell.batch)
    rows = float(np.mean(schedule.stages))
    return stream(own, schedule, order, min_requests=int(LEAST_ROUNDS * rows / np.mean(own.lengths)))


def goodput(policy: str, cell: Cell, number: int) -> float:
    """Tokens per simulated second of a shipped policy, or of one in a file, in split `number` of a cell."""
    return _goodput(load_policy_spec(find_policy(policy)), cell, number)


def plain_goodput(cell: Cell, number: int) -> float:
    """Tokens per simulated second of plain decoding."""
    return _goodput(static_spec(0, "ngram"), cell, number)


def best_fixed(cell: Cell, number: int) -> float:
    """Tokens per simulated second of the best fixed setting in hindsight: a drafter and a depth, or off."""
    specs = [static_spec(depth, name) for name in tape().drafters for depth in FIXED_DEPTHS]
    return max(plain_goodput(cell, number), *(_goodput(spec, cell, number) for spec in specs))


def _goodput(spec: PolicySpec, cell: Cell, number: int) -> float:
    return replay(spec, stream_of(cell, number), costs(cell.table)).goodput

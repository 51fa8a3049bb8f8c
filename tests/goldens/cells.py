"""The cells that goldens cover, each at five splits of the bundled pair's tape, and what a policy earns in one."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from adaptspec.control.language.build import load_policy_spec
from adaptspec.control.language.library import find_policy
from adaptspec.simulation.cost_profiles import load_costs
from adaptspec.simulation.replay import replay
from adaptspec.simulation.scenarios import IN_TURN
from adaptspec.simulation.tape import Tape
from adaptspec.simulation.tape_file import find_tape, load_tape
from tests.policies.cells import CROWD, MIXED, SPLITS, Cell, one_in_five, stream_of

__all__ = ["SPLITS", "Cell", "cells", "goodput", "split", "tape"]

MACHINES = ("cpu-2-cores", "gpu-8b")
BATCHES = ("1", "4", "16", "64")


@cache
def tape() -> Tape:
    """The tape that ships."""
    return load_tape(find_tape("bundled"))


def cells() -> Iterator[Cell]:
    """Every task, all of them mixed in both ways, and drafts that are never right, at every batch size."""
    works = (*dict.fromkeys(tape().tasks), *MIXED)
    for machine in MACHINES:
        for work in works:
            yield from (Cell(machine, work, batch) for batch in BATCHES)
        yield Cell(machine, IN_TURN, CROWD)


@cache
def split(number: int) -> Tape:
    """A split of the tape that ships."""
    return one_in_five(tape(), number)


def goodput(policy: str, cell: Cell, number: int) -> float:
    """Tokens per simulated second of a shipped policy, or of one in a file."""
    spec = load_policy_spec(find_policy(policy))
    return replay(spec, stream_of(cell, split(number)), load_costs(cell.table)).goodput

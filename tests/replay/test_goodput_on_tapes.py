"""What the default policy earns on the tape that ships, against fixed depths of both drafters: floors of its promises.

Its priors were chosen on the even requests of each task, the floors are of the odd ones. Some older parameters (the
depth of 12, the row's own history, the prior of lookups) were looked at on all of them: there the floors flatter.
Simulations are deterministic. Where a promise is not kept yet, the floor is what is reached, less a little, and says
so.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from adaptspec.control.library import find_policy
from adaptspec.control.spec import load_policy_spec
from adaptspec.replay.cells import IN_PHASES, IN_TURN, WRONG, Cell, mixed_cells, task_cells
from adaptspec.replay.costs import load_costs
from adaptspec.replay.oracle import References, references
from adaptspec.replay.simulator import replay, static_spec
from adaptspec.replay.streams import Schedule, stream
from adaptspec.replay.tape import Tape
from adaptspec.replay.tape_file import find_tape, load_tape
from adaptspec.replay.world import WorldSettings

pytestmark = pytest.mark.whole

WORLD = WorldSettings()
CPU, GPU = "cpu-2-cores", "gpu-8b"
DEPTHS = (1, 3, 7, 12)
# Where answers are short or prompts long, so that the first rounds weigh most.
HARD = ("rag", "summarize", "translate")


@cache
def held_out(temperature: float) -> Tape:
    """Every second request of each task."""
    tape = load_tape(find_tape("bundled")).at_temperature(temperature)
    tasks = np.array(tape.tasks)
    return tape.take(
        sorted(r for task in dict.fromkeys(tape.tasks) for r in np.flatnonzero(tasks == task)[1::2].tolist())
    )


def earned(cell: Cell, machine: str, policy: str = "goodput") -> float:
    return replay(load_policy_spec(find_policy(policy)), cell.stream, load_costs(machine), WORLD).goodput


def best_fixed(cell: Cell, machine: str) -> float:
    """Off, and the draft model and the lookup at every tier."""
    settings = [(0, "ngram"), *((depth, name) for name in WORLD.drafters for depth in DEPTHS)]
    costs = load_costs(machine)
    return max(replay(static_spec(depth, name), cell.stream, costs, WORLD).goodput for depth, name in settings)


def known_of(cell: Cell, machine: str) -> References:
    """At batch 1 the references are exact, and knowing them takes no replays."""
    return references(cell.stream, load_costs(machine), WORLD.drafters, WORLD, DEPTHS)


def mixed(temperature: float, batch: int, order: str) -> Cell:
    return next(cell for cell in mixed_cells(held_out(temperature), [Schedule((batch,))]) if cell.work == order)


@pytest.mark.parametrize(("machine", "temperature"), [(CPU, 0.0), (GPU, 0.8)])
def test_one_task_at_batch_1(machine: str, temperature: float) -> None:
    """Promised: 0.98 of the best fixed depth on every task. Short translations miss it by 2 %."""
    cells = [cell for cell in task_cells(held_out(temperature), [Schedule((1,))]) if cell.work != WRONG]
    shares = {cell.work: earned(cell, machine) / known_of(cell, machine).best_static for cell in cells}
    assert shares.pop("translate") >= 0.96
    assert min(shares.values()) >= 0.98, shares
    assert np.mean(list(shares.values())) >= 1.09


ROUNDS = 1000  # of plain decoding

# Promised: 0.98. Reached at batches of 4, 16 and 64 in the worst of these tasks, on streams of 20 to 150 rounds.
SHORT = {(CPU, 0.0): (0.93, 0.96, 0.93), (CPU, 0.8): (0.94, 0.92, 0.95), (GPU, 0.8): (0.96, 0.98, 0.95)}


@pytest.mark.parametrize(("machine", "temperature"), list(SHORT))
@pytest.mark.parametrize("place", [0, 1, 2])
def test_hard_tasks_at_larger_batches(machine: str, temperature: float, place: int) -> None:
    """What looking for the best costs where all is soon over; all other tasks keep the promise, but for story, 0.96."""
    cells = task_cells(held_out(temperature), [Schedule(((4, 16, 64)[place],))])
    for cell in cells:
        if cell.work in HARD:
            share = earned(cell, machine) / best_fixed(cell, machine)
            assert share >= SHORT[machine, temperature][place], cell.work


@pytest.mark.parametrize(("batch", "reached"), [(4, 0.975), (16, 0.97), (64, 0.975)])
def test_hard_tasks_that_go_on(batch: int, reached: float) -> None:
    """Promised: 0.98. Most of what short streams lose is the price of finding out: this is what stays of it."""
    tape = held_out(0.8)
    for task in HARD:
        own = tape.of_task(task)
        cell = Cell(task, stream(own, Schedule((batch,)), least=int(ROUNDS * batch / np.mean(own.lengths))))
        assert earned(cell, CPU) >= reached * best_fixed(cell, CPU), task


# Share of the best fixed depth, and of the gap to the clairvoyant. Promised: CPU 1.05 and 0.12, 8B 1.09 and 0.28.
MIXED = {
    (CPU, 0.0, IN_PHASES): (1.18, 0.30),
    (CPU, 0.8, IN_TURN): (1.10, 0.17),
    (GPU, 0.0, IN_PHASES): (1.60, 0.60),
    (GPU, 0.8, IN_TURN): (1.12, 0.28),
}


@pytest.mark.parametrize(("machine", "temperature", "order"), list(MIXED))
def test_mixed_streams_at_batch_1(machine: str, temperature: float, order: str) -> None:
    """Beyond every fixed depth, and beyond the rules that other servers have."""
    share, gap = MIXED[machine, temperature, order]
    cell = mixed(temperature, 1, order)
    reference, goodput = known_of(cell, machine), earned(cell, machine)
    assert goodput >= share * reference.best_static
    closed = reference.gap_closed(goodput)
    assert closed is not None
    assert closed >= gap
    for rival in ("sglang-ema", "vllm-batch-table"):
        assert goodput > earned(cell, machine, rival), rival


# Promised: 1.00. Not kept, by 3 %, at temperature 0.8 by 16 rows with CPU costs.
LARGE = {
    (CPU, 0.0, 4): 1.05,
    (CPU, 0.8, 16): 0.96,
    (CPU, 0.8, 64): 1.00,
    (GPU, 0.8, 16): 1.00,
    (GPU, 0.8, 64): 1.00,
}


@pytest.mark.parametrize(("machine", "temperature", "batch"), list(LARGE))
def test_mixed_streams_at_larger_batches(machine: str, temperature: float, batch: int) -> None:
    """No less than the best fixed depth; above other rules wherever that holds."""
    cell = mixed(temperature, batch, IN_TURN)
    goodput, floor = earned(cell, machine), LARGE[machine, temperature, batch]
    assert goodput >= floor * best_fixed(cell, machine)
    assert goodput > min(floor, 1.0) * earned(cell, machine, "sglang-ema")
    assert goodput > earned(cell, machine, "vllm-batch-table")


@pytest.mark.parametrize("machine", [CPU, GPU])
@pytest.mark.parametrize("batch", [16, 64])
def test_drafts_that_are_always_wrong(machine: str, batch: int) -> None:
    """Promised: 0.98 of plain decoding."""
    cell = next(cell for cell in task_cells(held_out(0.0), [Schedule((batch,))]) if cell.work == WRONG)
    assert earned(cell, machine) >= 0.98 * earned(cell, machine, "off")

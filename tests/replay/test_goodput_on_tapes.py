"""What the default policy earns on the tape that ships: the floors of its promises, on requests it was not tuned on.

Parameters were chosen on every other request of each task; these are the others. Simulations are deterministic.
Where a promise is not kept yet, the floor is what is reached, less a little, and says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import numpy as np
import pytest

from adaptspec.control.library import find_policy
from adaptspec.control.spec import load_policy_spec
from adaptspec.replay.cells import WRONG, Cell, mixed_cells, task_cells
from adaptspec.replay.costs import load_costs
from adaptspec.replay.oracle import references
from adaptspec.replay.simulator import replay, static_spec
from adaptspec.replay.streams import Schedule
from adaptspec.replay.tape import Tape
from adaptspec.replay.tape_file import find_tape, load_tape
from adaptspec.replay.world import WorldSettings

WORLD = WorldSettings(drafters=("draft-model",))
CPU, GPU = "cpu-2-cores", "gpu-8b"
both = pytest.mark.parametrize("machine", [CPU, GPU])


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


def best_fixed(cell: Cell, machine: str, depths: Iterable[int]) -> float:
    return max(replay(static_spec(depth), cell.stream, load_costs(machine), WORLD).goodput for depth in depths)


@pytest.mark.parametrize(("machine", "temperature"), [(CPU, 0.0), (GPU, 0.8)])
def test_one_task_at_batch_1(machine: str, temperature: float) -> None:
    """Promised: 0.98 of the best fixed depth on every task. Not kept where answers are a dozen tokens long, or rare."""
    shares = {
        cell.work: earned(cell, machine) / best_fixed(cell, machine, [0] if cell.work == WRONG else range(6))
        for cell in task_cells(held_out(temperature), [Schedule((1,))])
    }
    assert shares[WRONG] >= 0.98
    assert sum(share < 0.98 for share in shares.values()) <= 2
    assert min(shares.values()) >= 0.90
    assert np.mean(list(shares.values())) >= 1.02


# Share of the best fixed depth, and of the gap between it and the clairvoyant. Promised with 8B costs: 1.09 and 0.28.
MIXED = {(CPU, 0.8): (1.05, 0.12), (GPU, 0.0): (1.09, 0.28), (GPU, 0.8): (1.07, 0.25)}


@pytest.mark.parametrize(("machine", "temperature"), list(MIXED))
def test_mixed_streams_at_batch_1(machine: str, temperature: float) -> None:
    """Beyond every fixed depth, and beyond the rules that other servers have."""
    share, gap = MIXED[machine, temperature]
    cells = mixed_cells(held_out(temperature), [Schedule((1,))])
    # At batch 1 the order of requests changes nothing for a fixed depth, nor for the clairvoyant.
    reference = references(cells[0].stream, load_costs(machine), WORLD.drafters, WORLD)
    for cell in cells:
        goodput = earned(cell, machine)
        assert goodput >= share * reference.best_static, cell.work
        closed = reference.gap_closed(goodput)
        assert closed is not None
        assert closed >= gap, cell.work
        for rival in ("sglang-ema", "vllm-batch-table"):
            assert goodput > earned(cell, machine, rival), (cell.work, rival)


@both
@pytest.mark.parametrize("batch", [4, 16, 64])
def test_mixed_streams_at_larger_batches(machine: str, batch: int) -> None:
    """Promised: no less than the best fixed depth, and than other rules. Kept but for what looking costs, where

    one depth is right for all: 0.6 % where that is off.
    """
    cell = mixed_cells(held_out(0.0), [Schedule((batch,))])[0]
    goodput = earned(cell, machine)
    assert goodput >= 0.985 * best_fixed(cell, machine, range(4))
    assert goodput >= 0.985 * earned(cell, machine, "sglang-ema")
    assert goodput >= 0.985 * earned(cell, machine, "vllm-batch-table")


@both
@pytest.mark.parametrize("batch", [16, 64])
def test_drafts_that_are_always_wrong(machine: str, batch: int) -> None:
    cell = next(cell for cell in task_cells(held_out(0.0), [Schedule((batch,))]) if cell.work == WRONG)
    assert earned(cell, machine) >= 0.98 * best_fixed(cell, machine, [0])

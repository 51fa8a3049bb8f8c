"""What the default policy promises on the tape that ships, against fixed depths of both drafters.

Cells are those of task, batch size and machine: greedy and sampled requests of a task come mixed, as they do to a
server. Its parameters were chosen on the even requests of each task, promises are held on the odd ones. Some older ones
(the depth of 12, the row's own history, the prior of lookups) were looked at on all of them: there the figures flatter.
Simulations are deterministic; what fixed rules deliver is kept in a file (see `tests.references`).
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from adaptspec.analysis.oracle import references
from adaptspec.control.language.build import load_policy_spec
from adaptspec.control.language.library import find_policy
from adaptspec.simulation.cost_profiles import load_costs
from adaptspec.simulation.replay import replay
from adaptspec.simulation.scenarios import (
    IN_PHASES,
    IN_TURN,
    WRONG,
    Scenario,
    Schedule,
    mixed_scenarios,
    stream,
    task_scenarios,
)
from adaptspec.simulation.simulator import SimulatorSettings
from adaptspec.simulation.tape import Tape
from adaptspec.simulation.tape_file import find_tape, load_tape
from tests.references import fixed_goodput
from tests.references import goodput as goodput_of

pytestmark = pytest.mark.whole

WORLD = SimulatorSettings(drafters=("draft-model", "ngram"))  # the default's own
CPU, GPU = "cpu-2-cores", "gpu-8b"
MACHINES, BATCHES = (CPU, GPU), (1, 4, 16, 64)
DEPTHS = (1, 3, 7, 12)
ROUNDS = 1000  # of plain decoding: what a stationary cell lasts, its requests coming again and again


@cache
def held_out(temperature: float | None = None) -> Tape:
    """Every second request of each task, of all temperatures or of one."""
    tape = load_tape(find_tape("bundled"))
    if temperature is not None:
        tape = tape.at_temperature(temperature)
    tasks = np.array(tape.tasks)
    return tape.take(
        sorted(r for task in dict.fromkeys(tape.tasks) for r in np.flatnonzero(tasks == task)[1::2].tolist())
    )


def earned(cell: Scenario, machine: str) -> float:
    return replay(load_policy_spec(find_policy("goodput")), cell.stream, load_costs(machine), WORLD).goodput


def fixed(cell: Scenario, machine: str) -> list[float]:
    """Off, and the draft model and the lookup at every tier."""
    settings = [(0, "ngram"), *((depth, name) for name in WORLD.drafters for depth in DEPTHS)]
    costs = load_costs(machine)
    return [fixed_goodput(depth, name, cell.stream, costs, WORLD) for depth, name in settings]


def other(cell: Scenario, machine: str, policy: str) -> float:
    """What a rule that other servers have delivers, or plain decoding."""
    return goodput_of(find_policy(policy).read_text(), cell.stream, load_costs(machine), WORLD)


def lasting(task: str, batch: int, temperature: float | None = None) -> Scenario:
    own = held_out(temperature).of_task(task)
    return Scenario(task, stream(own, Schedule((batch,)), least=int(ROUNDS * batch / np.mean(own.lengths))))


def mixed(batch: int, order: str, temperature: float | None = None) -> Scenario:
    return next(cell for cell in mixed_scenarios(held_out(temperature), [Schedule((batch,))]) if cell.work == order)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("task", list(dict.fromkeys(load_tape(find_tape("bundled")).tasks)))
def test_stationary_cells(machine: str, batch: int, task: str) -> None:
    """At least 0.98 of plain decoding, and 0.96 of the best fixed depth in hindsight."""
    cell = lasting(task, batch)
    goodput = earned(cell, machine)
    assert goodput >= 0.98 * other(cell, machine, "off")
    assert goodput >= 0.96 * max(fixed(cell, machine))


# Of the worst task: streams of 20 to 200 rounds are over before it is known what pays.
SHORT = {(CPU, 1): 0.95, (CPU, 4): 0.945, (CPU, 16): 0.93, (CPU, 64): 0.955, (GPU, 4): 0.99, (GPU, 64): 0.99}


@pytest.mark.parametrize(("machine", "batch"), list(SHORT))
def test_tasks_that_are_soon_over(machine: str, batch: int) -> None:
    """What finding out costs; no promise."""
    cells = [cell for cell in task_scenarios(held_out(), [Schedule((batch,))]) if cell.work != WRONG]
    shares = {cell.work: earned(cell, machine) / max(fixed(cell, machine)) for cell in cells}
    assert min(shares.values()) >= SHORT[machine, batch], shares
    assert np.mean(list(shares.values())) >= 1.035


# Share of the best fixed depth, and of the gap to the clairvoyant.
MIXED = {CPU: (1.05, 0.12), GPU: (1.09, 0.28)}


@pytest.mark.parametrize("order", [IN_TURN, IN_PHASES])
@pytest.mark.parametrize("machine", MACHINES)
def test_mixed_streams_at_batch_1(machine: str, order: str) -> None:
    """Beyond every fixed depth, a good part of the way to an oracle, and beyond the rules that other servers have."""
    share, gap = MIXED[machine]
    cell = mixed(1, order)
    reference, goodput = (
        references(cell.stream, load_costs(machine), WORLD.drafters, WORLD, DEPTHS),
        earned(cell, machine),
    )
    assert goodput >= share * reference.best_static
    closed = reference.gap_closed(goodput)
    assert closed is not None
    assert closed >= gap
    for rival in ("sglang-ema", "vllm-batch-table"):
        assert goodput > other(cell, machine, rival), rival


@pytest.mark.parametrize("order", [IN_TURN, IN_PHASES])
@pytest.mark.parametrize("batch", [4, 16, 64])
@pytest.mark.parametrize("machine", MACHINES)
def test_mixed_streams_at_larger_batches(machine: str, batch: int, order: str) -> None:
    """No less than the best fixed depth; above other rules."""
    cell = mixed(batch, order)
    goodput = earned(cell, machine)
    assert goodput >= max(fixed(cell, machine))
    for rival in ("sglang-ema", "vllm-batch-table"):
        assert goodput > other(cell, machine, rival), rival


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("batch", [16, 64])
def test_drafts_that_are_always_wrong(machine: str, batch: int) -> None:
    """At least 0.98 of plain decoding."""
    cell = next(cell for cell in task_scenarios(held_out(), [Schedule((batch,))]) if cell.work == WRONG)
    assert earned(cell, machine) >= 0.98 * other(cell, machine, "off")


# Temperatures apart, there are half as many requests: streams are over sooner, and floors are what is reached.
HARD = ("rag", "summarize", "translate")


@pytest.mark.parametrize(("machine", "temperature", "translate"), [(CPU, 0.0, 0.95), (GPU, 0.8, 0.94)])
def test_one_task_and_temperature_at_batch_1(machine: str, temperature: float, translate: float) -> None:
    cells = [cell for cell in task_scenarios(held_out(temperature), [Schedule((1,))]) if cell.work != WRONG]
    shares = {cell.work: earned(cell, machine) / max(fixed(cell, machine)) for cell in cells}
    assert shares.pop("translate") >= translate
    assert min(shares.values()) >= 0.95, shares
    assert np.mean(list(shares.values())) >= 1.09


# At batches of 4, 16 and 64, in the worst of the tasks where answers are short or prompts long.
HARD_APART = {(CPU, 0.0): (0.93, 0.96, 0.93), (CPU, 0.8): (0.94, 0.90, 0.94), (GPU, 0.8): (0.94, 0.955, 0.95)}


@pytest.mark.parametrize(("machine", "temperature"), list(HARD_APART))
@pytest.mark.parametrize("place", [0, 1, 2])
def test_hard_tasks_of_one_temperature(machine: str, temperature: float, place: int) -> None:
    for cell in task_scenarios(held_out(temperature), [Schedule(((4, 16, 64)[place],))]):
        if cell.work in HARD:
            share = earned(cell, machine) / max(fixed(cell, machine))
            assert share >= HARD_APART[machine, temperature][place], cell.work


@pytest.mark.parametrize(("batch", "reached"), [(4, 0.955), (16, 0.97), (64, 0.965)])
def test_hard_tasks_of_one_temperature_that_go_on(batch: int, reached: float) -> None:
    for task in HARD:
        cell = lasting(task, batch, 0.8)
        assert earned(cell, CPU) >= reached * max(fixed(cell, CPU)), task


@pytest.mark.parametrize(
    ("machine", "temperature", "order", "share", "gap"),
    [
        (CPU, 0.0, IN_PHASES, 1.18, 0.30),
        (CPU, 0.8, IN_TURN, 1.10, 0.17),
        (GPU, 0.0, IN_PHASES, 1.60, 0.60),
        (GPU, 0.8, IN_TURN, 1.12, 0.28),
    ],
)
def test_mixed_streams_of_one_temperature(
    machine: str, temperature: float, order: str, share: float, gap: float
) -> None:
    cell = mixed(1, order, temperature)
    goodput, reference = (
        earned(cell, machine),
        references(cell.stream, load_costs(machine), WORLD.drafters, WORLD, DEPTHS),
    )
    closed = reference.gap_closed(goodput)
    assert goodput >= share * reference.best_static
    assert closed is not None
    assert closed >= gap
    for rival in ("sglang-ema", "vllm-batch-table"):
        assert goodput > other(cell, machine, rival), rival


# One does not reach 1.00.
LARGE_APART = {(CPU, 0.0, 4): 1.05, (CPU, 0.8, 16): 0.96, (CPU, 0.8, 64): 1.0, (GPU, 0.8, 16): 1.0, (GPU, 0.8, 64): 1.0}


@pytest.mark.parametrize(("machine", "temperature", "batch"), list(LARGE_APART))
def test_larger_batches_of_one_temperature(machine: str, temperature: float, batch: int) -> None:
    cell, floor = mixed(batch, IN_TURN, temperature), LARGE_APART[machine, temperature, batch]
    goodput = earned(cell, machine)
    assert goodput >= floor * max(fixed(cell, machine))
    assert goodput > min(floor, 1.0) * other(cell, machine, "sglang-ema")
    assert goodput > other(cell, machine, "vllm-batch-table")

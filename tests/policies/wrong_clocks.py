"""Wrong clocks: what a policy earns where its cost table at the start, and the seconds of rounds, are not the truth.

Each draw has a start table with every cell 0.2 to 5 times the truth, so not even monotone, noise of sigma 0.3, stalls
of ten times in 2 % of the rounds, and a machine that becomes half as fast on the way. It is compared with the same
policy in the same world that starts with a true table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from adaptspec.control.cost_profile import CostProfile
from tests.policies.tapes import Kind
from tests.policies.world import CPU, GPU, OFF, STEPPED, Clock, Phase, World

LEAST, MOST = 0.2, 5.0  # a cell of a wrong table over the truth
SLOWED = 400  # the round from which on the machine is half as fast
CLOCK = Clock(noise=0.3, stalls=0.02, stall=10.0, slow=(SLOWED, 10**9, 2.0))
KINDS = (Kind(0.9), Kind(0.7), Kind(0.4), Kind(0.0, 0.0), Kind(0.5, 0.7))


@dataclass(frozen=True)
class Run:
    """One draw; goodputs are those after the world's settling time."""

    number: int
    world: str
    over_true: float  # goodput over that of the same policy whose table is true
    over_off: float  # goodput over that of plain decoding
    drafting: float  # share of the row-rounds that draft


def world(number: int) -> World:
    """The world of this number: the same whenever it is drawn."""
    machine = (CPU, GPU, STEPPED)[number % 3]
    random = np.random.default_rng(number)
    kind, batch = KINDS[random.integers(len(KINDS))], int(random.choice((1, 4, 16)))
    name = f"{number}: {machine.name}, {kind.model} and {kind.lookup}, {batch} rows"
    phases = (Phase((kind,), 24 + 8 * batch),)
    return World(name, phases, OFF, (batch,), machine, CLOCK, distorted, settled=0.3)


def distorted(true: CostProfile, random: np.random.Generator) -> CostProfile:
    """The table of a machine of which every cell was disturbed."""

    def wrong(seconds: float) -> float:
        return seconds * float(np.exp(random.uniform(np.log(LEAST), np.log(MOST))))

    drafters = {
        name: replace(
            cost,
            step_seconds=tuple(wrong(seconds) for seconds in cost.step_seconds),
            catch_up_per_token=wrong(cost.catch_up_per_token),
            start_seconds=wrong(cost.start_seconds),
        )
        for name, cost in true.drafters.items()
    }
    verify = tuple(tuple(wrong(seconds) for seconds in line) for line in true.verify)
    return replace(true, verify=verify, overhead=wrong(true.overhead), drafters=drafters)


def draw(policy: str, number: int) -> Run:
    """A policy's run in the world of this number."""
    here = world(number)
    served, informed = here.serve(policy, number), replace(here, start=None).serve(policy, number)
    off = here.fixed(OFF, number)
    return Run(number, here.name, served.goodput / informed.goodput, served.goodput / off, served.drafting)


def summary(runs: Sequence[Run]) -> dict[str, object]:
    """What all runs came to, and those that were worst."""
    true, off = np.array([run.over_true for run in runs]), np.array([run.over_off for run in runs])
    return {
        "runs": len(runs),
        "over_true": {"median": float(np.median(true)), "worst": float(true.min())},
        "over_off": {"median": float(np.median(off)), "worst": float(off.min())},
        "below_plain": int((off < 0.98).sum()),
        "worst": [asdict(run) for run in sorted(runs, key=lambda run: run.over_true)[:10]],
    }

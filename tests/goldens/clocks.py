"""Wrong clocks: what a policy earns where the cost table it starts with, and the seconds it is told, are not the truth.

Each run draws a start table (every cell times 0.2 to 5, so not even monotone), lap noise of sigma 0.3, stalls of ten
times in 2 % of rounds, and a machine that becomes half as fast half-way. It is compared with the same policy, the same
requests and the same bad luck, but a table that is true.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial

import numpy as np

from adaptspec.control.controller import Controller
from adaptspec.control.cost import CostProfile, CostTable
from adaptspec.control.language.build import build_policy, load_policy_spec
from adaptspec.control.language.library import find_policy
from adaptspec.control.language.spec import PolicySpec
from adaptspec.replay.cells import WRONG
from adaptspec.replay.costs import MachineCosts, load_costs
from adaptspec.replay.simulator import Tally, static_spec
from adaptspec.replay.streams import Schedule, Stream, stream
from adaptspec.replay.world import World, WorldSettings, drafters_of
from adaptspec.types import RoundRecord
from tests.goldens.cells import MACHINES, tape

LEAST, MOST = 0.2, 5.0  # what a cell of a wrong table is of the truth
NOISE = 0.3  # sigma of log-normal lap noise
STALLS, STALL = 0.02, 10.0  # share of rounds, and how much longer they take
SETTLED, LENGTH = 1000, 3000  # rounds before anything is asked of a run, and of a run in all
BATCHES = (1, 4, 16)
WORKS = ("json", "story", "chat", WRONG)
FIXED = (1, 3, 7)
PAYS = 1.3  # x plain decoding: where drafting pays so much, a policy has no reason to be off


@dataclass(frozen=True)
class Run:
    """One draw. Shares are of the rounds after the first `SETTLED`."""

    machine: str
    work: str
    batch: int
    seed: int
    over_true: float  # goodput over that of the same policy whose table is true
    over_off: float  # goodput over plain decoding's
    pays: float  # best fixed depth over plain decoding
    idle: float  # share of rounds without drafts
    exploring: float  # share of the time that tries and probes took beyond what they earned
    error: str = ""


def draw(policy: str, number: int) -> Run:
    """The run of this number: the same whenever it is drawn."""
    random = np.random.default_rng(number)
    machine, work = MACHINES[number % 2], WORKS[number // 2 % len(WORKS)]
    batch = int(random.choice(BATCHES))
    costs, requests = load_costs(machine), _requests(work, batch)
    pace = _pace(random)
    spec = load_policy_spec(find_policy(policy))

    def served(own: PolicySpec, profile: CostProfile | None = None) -> list[RoundRecord]:
        settings = WorldSettings(noise=NOISE, seed=number)
        cost = CostTable(profile or costs.profile())
        chosen = build_policy(own, cost, batch)
        drafters = drafters_of(requests.tape, costs, settings)
        world = World(
            requests, costs, Controller({own.name: chosen}, own.name, drafters, batch, cost=cost), settings, pace
        )
        return [world.round() for _ in range(LENGTH)][SETTLED:]

    off = _goodput(served(static_spec(0, "ngram")))
    fixed = max(_goodput(served(static_spec(k, name))) for name in ("draft-model", "ngram") for k in FIXED)
    true = _goodput(served(spec))
    try:
        wrong = served(spec, distorted(costs, random))
    except ArithmeticError as error:
        return Run(machine, work, batch, number, 0.0, 0.0, fixed / off, 1.0, 0.0, f"{type(error).__name__}: {error}")
    return Run(
        machine,
        work,
        batch,
        number,
        _goodput(wrong) / true,
        _goodput(wrong) / off,
        fixed / off,
        float(np.mean([not record.drafted.any() for record in wrong])),
        exploring(wrong),
    )


def distorted(costs: MachineCosts, random: np.random.Generator) -> CostProfile:
    """What a profiler that was disturbed in every lap would write down of a machine."""

    def wrong(seconds: float) -> float:
        return seconds * float(np.exp(random.uniform(np.log(LEAST), np.log(MOST))))

    true = costs.profile()
    return replace(
        true,
        verify=tuple(tuple(wrong(seconds) for seconds in line) for line in true.verify),
        overhead=wrong(true.overhead),
        drafters={
            name: replace(
                cost,
                step_seconds=tuple(wrong(seconds) for seconds in cost.step_seconds),
                catch_up_per_token=wrong(cost.catch_up_per_token),
                start_seconds=wrong(cost.start_seconds),
            )
            for name, cost in true.drafters.items()
        },
    )


def exploring(records: list[RoundRecord]) -> float:
    """Share of the time that rows which explored or probed took beyond what their tokens take in other rounds."""
    tally = Tally()
    for record in records:
        tally.add(record)
        tally.tokens += int(record.emitted.sum())
        tally.seconds += record.total_seconds
    return tally.probing_cost


def _requests(work: str, batch: int) -> Stream:
    """More of a kind of work than `LENGTH` rounds can serve."""
    whole = tape().always_wrong() if work == WRONG else tape().of_task(work)
    return stream(whole, Schedule((batch,)), least=int(8 * LENGTH * batch / np.mean(whole.lengths)))


def _pace(random: np.random.Generator) -> Callable[[int], float]:
    """Stalls, and a machine that is half as fast from the middle on."""
    stalled = random.random(LENGTH) < STALLS
    return lambda number: (STALL if stalled[number] else 1.0) * (2.0 if number >= LENGTH // 2 else 1.0)


def _goodput(records: list[RoundRecord]) -> float:
    return sum(int(one.emitted.sum()) for one in records) / sum(one.total_seconds for one in records)


def summary(runs: Sequence[Run]) -> dict[str, object]:
    """What all runs came to, and those that were worst."""
    over = np.array([run.over_true for run in runs])
    paying = [run for run in runs if run.pays >= PAYS]
    return {
        "runs": len(runs),
        "errors": [run.error for run in runs if run.error],
        "over_true": {"median": float(np.median(over)), "worst": float(over.min())},
        "below_plain": int(sum(run.over_off < 0.98 for run in runs)),
        "paying": {"runs": len(paying), "idle_beyond_5_percent": sum(run.idle > 0.05 for run in paying)},
        "exploring": {"mean": float(np.mean([run.exploring for run in runs])), "most": max(r.exploring for r in runs)},
        "worst": [asdict(run) for run in sorted(runs, key=lambda run: run.over_true)[:10]],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw and sum up."""
    parser = argparse.ArgumentParser(prog="python -m tests.goldens.clocks", description=__doc__.splitlines()[0])
    parser.add_argument("--policy", default="goodput")
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    asked = parser.parse_args(arguments)
    with ProcessPoolExecutor(asked.jobs) as pool:
        runs = list(pool.map(partial(draw, asked.policy), range(asked.runs), chunksize=4))
    sys.stdout.write(json.dumps(summary(runs), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

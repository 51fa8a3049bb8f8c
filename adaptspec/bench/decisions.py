"""What decisions cost: seconds of `decide` and `learn` per round, for policies replayed over a tape.

Real times of the control plane on this machine (of its thread alone: whatever else runs), beside simulated times of the
rounds it decides for. No models.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from typing import Any

import numpy as np

from adaptspec.control.controller import Controller
from adaptspec.control.language.spec import PolicySpec
from adaptspec.control.policy import BatchSignals
from adaptspec.decision import Decision
from adaptspec.rounds import RoundRecord
from adaptspec.simulation.machine import Machine
from adaptspec.simulation.scenarios import Schedule, in_turn, stream
from adaptspec.simulation.simulator import replay
from adaptspec.simulation.tape import Tape

BATCHES = (1, 64)


class TimedController(Controller):
    """Appends what each round's decision and learning took together to `seconds`."""

    def __init__(self, seconds: list[float], *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.seconds = seconds

    def decide(self, signals: BatchSignals) -> Decision:
        started = time.thread_time()
        decision = super().decide(signals)
        self.seconds.append(time.thread_time() - started)
        return decision

    def learn(self, record: RoundRecord) -> None:
        started = time.thread_time()
        super().learn(record)
        self.seconds[-1] += time.thread_time() - started


@dataclass(frozen=True)
class DecisionSettings:
    """Which batch sizes, and how many requests of the tape at each: at least so many, and so many for each row of the
    batch, since a policy begins with what it does seldom later. The tape is repeated where it is shorter.
    """

    batches: tuple[int, ...] = BATCHES
    requests: int = 256
    requests_per_row: int = 16


def run_decisions(
    policies: Sequence[PolicySpec],
    tape: Tape,
    costs: Machine,
    settings: DecisionSettings,
    tick: Callable[[], None],
) -> dict[str, Any]:
    """Microseconds per round by policy and batch size; `tick` is called after each.

    `share_of_round` is the median over the mean simulated round: what of a round the decision takes.

    Raises:
        TapeError, PolicyError, ConfigError: a policy does not go with the tape.
    """
    rows = []
    for spec in policies:
        for batch in settings.batches:
            requests = max(settings.requests, settings.requests_per_row * batch)
            rows.append({"policy": spec.name, "batch": batch, **_measure(spec, tape, costs, batch, requests)})
            tick()
    return {"benchmark": "decisions", "machine": costs.label, "policies": rows}


def _measure(spec: PolicySpec, tape: Tape, costs: Machine, batch: int, requests: int) -> dict[str, float]:
    order = tuple(islice(cycle(in_turn(tape)), requests))
    work = stream(tape, Schedule((batch,)), order)
    seconds: list[float] = []
    tally = replay(spec, work, costs, controller=partial(TimedController, seconds))
    spent = np.array(seconds) * 1e6
    median = float(np.median(spent))
    return {
        "rounds": tally.rounds,
        "median_us": median,
        "mean_us": float(spent.mean()),
        "p99_us": float(np.quantile(spent, 0.99)),
        "share_of_round": median / 1e6 / (tally.seconds / tally.rounds),
    }

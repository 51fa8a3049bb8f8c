"""SGLang's AdaptiveController over a worker that follows a script, by the script's clock: `scripted.py MODEL POLICY`.
What each way to choose steps earned per second in worlds that change, and what became of faults, as JSON.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
from collections import deque
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import engine
import sglang.srt.speculative.eagle_worker_v2  # noqa: F401 - once for all

from adaptspec.control.controller import Controller
from adaptspec.control.policy import BatchSignals
from adaptspec.decision import Decision
from adaptspec.hosts.sglang import policy_steps

DEPTHS = (0, 1, 3, 5, 7)
# How likely the next drafted token is to be kept, how many requests run, and for how many steps; then others come.
WORLDS = ((0.9, 1, 600), (0.3, 1, 600), (0.9, 16, 600), (0.3, 16, 600), (0.05, 4, 600), (0.9, 1, 2000))


def main(model: str, policy: str) -> None:
    told: dict[str, Any] = {"stock": engine.apart(lambda: _earned(model, None))}
    for depth in DEPTHS:
        told[f"static {depth}"] = engine.apart(lambda depth=depth: _earned(model, None, fixed=depth))
    for lag in (0, 1):
        told[f"policy lag {lag}"] = engine.apart(lambda lag=lag: _earned(model, policy, lag=lag))
    for fault in ("raises", "third", "deep"):
        told[fault] = engine.apart(lambda fault=fault: _earned(model, policy, lag=1, fault=fault))
    print(json.dumps(told))


def _earned(model: str, policy: str | None, lag: int = 0, fixed: int | None = None, fault: str = "") -> dict[str, Any]:
    options = () if policy is None else ("--speculative-adaptive-config", policy)
    told = engine.start(model, *options)
    now = [0.0]
    policy_steps.time = SimpleNamespace(perf_counter=lambda: now[0])
    worker = engine.Worker(policy, told["steps"])
    params = worker.adaptive_controller.params
    _break(fault)
    chance = random.Random(5)
    rates, taken = [], []
    running: deque[tuple[list[int], float]] = deque()
    for likely, size, rounds in WORLDS:
        tokens, began = 0, now[0]
        for step in range(1, rounds + 1):
            steps = worker.steps(size) if fixed is None else fixed
            assert steps in worker.built
            taken.append(steps)
            accepted = [next(_kept(chance, likely, steps)) for _ in range(size)]
            tokens += size + sum(accepted)
            running.append((accepted, 0.010 + 0.0004 * size * (1 + steps) + 0.001 * steps))
            while len(running) > (lag if step % 200 else 0):  # the next one is asked for while the last one runs
                accepted, seconds = running.popleft()
                now[0] += seconds
                if fixed is None:
                    worker.verified(accepted)
            if not step % 200:
                now[0] += 3600.0  # they are done, and for an hour there is nobody
                began += 3600.0
        rates.append(tokens / (now[0] - began))
    return {
        "rates": rates,
        "last": taken[-100:],
        "errors": getattr(getattr(params, "pilot", None), "errors", 0),
        "detached": getattr(getattr(params, "pilot", None), "detached", False),
        "here": len(getattr(getattr(params, "pilot", None), "_guests", SimpleNamespace(rows=())).rows),
    }


def _kept(chance: random.Random, likely: float, steps: int) -> Iterator[int]:
    kept = 0
    while kept < steps and chance.random() < likely:
        kept += 1
    yield kept


def _break(fault: str) -> None:
    decide, calls = Controller.decide, itertools.count(1)

    def broken(controller: Controller, signals: BatchSignals) -> Decision:
        decision = decide(controller, signals)
        if fault == "raises" or (fault == "third" and not next(calls) % 3):
            raise RuntimeError("broken on purpose")
        if fault == "deep":
            decision.depths[:] = 99
        return decision

    if fault:
        Controller.decide = broken


main(*sys.argv[1:])

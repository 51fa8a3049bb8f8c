"""Searches a policy's parameters on one half of the prompts of a tape, and lets the other half decide."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import stdtrit

from adaptspec.analysis.journal_tape import narrowed
from adaptspec.analysis.search_space import Parameter, Path, Value, draw, with_values
from adaptspec.arrays import FloatArray
from adaptspec.control.language.loader import Find, parse_policy_spec
from adaptspec.control.language.spec import PolicySpec
from adaptspec.errors import PolicyError, TapeError
from adaptspec.simulation.machine import Machine
from adaptspec.simulation.scenarios import Schedule, Stream, in_turn, stream
from adaptspec.simulation.simulator import replay
from adaptspec.simulation.tape import Tape

# Each half is dealt into so many streams; they are what gains are averaged over, and how their error is known.
FOLDS = 6
# Of the candidates of a round of the search one in so many stays for the next, on so many more streams.
_ETA = 3
# Candidates that the schema refuses are drawn anew, but not for ever.
_TRIES = 200


@dataclass(frozen=True)
class Candidate:
    """A candidate: its values, its text, and its gain over the original on streams of the tuning half."""

    values: Mapping[Path, Value]
    text: str
    gain: float
    folds: int


@dataclass(frozen=True)
class Tuned:
    """What came of it. `gains` are those of the best candidate over the original on the held-out streams, as factors;
    `low` and `high` bound their mean with 90 % confidence.
    """

    best: Candidate
    trials: tuple[Candidate, ...]
    before: float  # tokens per second on the held-out half
    after: float
    gains: tuple[float, ...]
    low: float
    high: float

    @property
    def gain(self) -> float:
        """Geometric mean of the held-out gains."""
        return float(np.exp(np.mean(np.log(self.gains))))

    @property
    def improves(self) -> bool:
        """Whether the held-out half shows a gain: with 95 % confidence there is one."""
        return bool(self.best.values) and self.low > 1.0

    def to_json(self) -> dict[str, Any]:
        return {
            "improves": self.improves,
            "values": _named(self.best.values),
            "tuning": {"gain": self.best.gain, "candidates": len(self.trials)},
            "held_out": {
                "before": self.before,
                "after": self.after,
                "gain": self.gain,
                "low": self.low,
                "high": self.high,
                "by_stream": list(self.gains),
            },
            "trials": [{"values": _named(one.values), "gain": one.gain, "streams": one.folds} for one in self.trials],
        }


def _gains(
    spec: PolicySpec, streams: Sequence[Sequence[Stream]], machines: Sequence[Machine], original: FloatArray
) -> tuple[FloatArray, float]:
    """Log gains by fold [F] over the original's goodputs, which are [F, runs]; and the mean goodput of all runs."""
    after = _goodputs(spec, streams, machines)
    return np.log(after / original[: len(after)]).mean(axis=1), float(after.mean())


def _goodputs(spec: PolicySpec, streams: Sequence[Sequence[Stream]], machines: Sequence[Machine]) -> FloatArray:
    """By fold and run [F, machines x schedules]."""
    return np.array([[replay(spec, one, costs).goodput for costs in machines for one in fold] for fold in streams])


def tune(
    text: str,
    space: Sequence[Parameter],
    tape: Tape,
    schedules: Sequence[Schedule],
    machines: Sequence[Machine],
    *,
    budget: int = 24,
    seed: int = 0,
    find: Find | None = None,
    tick: Callable[[float], None] = lambda _: None,
) -> Tuned:
    """Random search with successive halving: `budget` candidates on one stream of the tuning half, a third of them on
    three, a third of these on all; the best of the last is run once on the held-out half. A candidate's gain is the
    geometric mean, over streams, machines and batch sizes, of its goodput over the original's. Deterministic.
    Drafters that are not on the tape are left out. `find` gives the policies that the text names.

    Source: Jamieson and Talwalkar 2016, "Non-stochastic Best Arm Identification and Hyperparameter Optimization".
    Raises TapeError: too few prompts for both halves; PolicyError: a parameter does not exist, or cannot take its
    values.
    """
    halves = split(tape, 2)
    if len(halves) < 2 or any(len(split(half, FOLDS)) < FOLDS for half in halves):
        raise TapeError(f"tuning needs at least {2 * FOLDS} prompts; this tape has fewer: record more")
    learning, holding = (
        [[stream(fold, schedule, in_turn(fold)) for schedule in schedules] for fold in split(half, FOLDS)]
        for half in halves
    )

    def spec_of(text: str) -> PolicySpec:
        return narrowed(parse_policy_spec(text, find=find), tuple(tape.drafters))

    original = spec_of(text)
    known, held = _goodputs(original, learning, machines), _goodputs(original, holding, machines)
    racing = _candidates(text, space, budget, seed, find)
    rungs = [1, min(_ETA, FOLDS), FOLDS]
    work = sum(_left(budget, rung) * folds for rung, folds in enumerate(rungs)) + FOLDS
    done = 0
    finished: list[Candidate] = []
    for rung, folds in enumerate(rungs):
        measured = []
        for one in racing[: _left(budget, rung)]:
            logs, _ = _gains(spec_of(one.text), learning[:folds], machines, known)
            measured.append(replace(one, gain=float(np.exp(logs.mean())), folds=folds))
            done += folds
            tick(done / work)
        racing = sorted(measured, key=lambda one: -one.gain)
        finished = racing + finished[len(racing) :]
    best = racing[0] if racing[0].gain > 1.0 else Candidate({}, text, 1.0, FOLDS)
    logs, after = _gains(spec_of(best.text), holding, machines, held)
    tick(1.0)
    spread = float(logs.std(ddof=1)) / math.sqrt(FOLDS) * float(stdtrit(FOLDS - 1, 0.95))
    low, high = (math.exp(float(logs.mean()) + sign * spread) for sign in (-1.0, 1.0))
    return Tuned(best, tuple(finished), float(held.mean()), after, tuple(np.exp(logs).tolist()), low, high)


def split(tape: Tape, parts: int) -> list[Tape]:
    """The tape's prompts dealt out in turn, task by task; one that was recorded at several temperatures stays whole.
    Parts that would be empty are left out.
    """
    prompts: dict[str, dict[str, list[int]]] = {}
    for request, (name, task) in enumerate(zip(tape.ids, tape.tasks, strict=True)):
        prompts.setdefault(task, {}).setdefault(name.partition("@")[0], []).append(request)
    dealt: list[list[int]] = [[] for _ in range(parts)]
    for number, requests in enumerate(requests for own in prompts.values() for requests in own.values()):
        dealt[number % parts] += requests
    return [tape.take(requests) for requests in dealt if requests]


def _left(budget: int, rung: int) -> int:
    left: int = -(-budget // _ETA**rung)
    return left


def _candidates(text: str, space: Sequence[Parameter], budget: int, seed: int, find: Find | None) -> list[Candidate]:
    """As many as the budget says, all valid and different."""
    rng = np.random.default_rng(seed)
    found: dict[str, Candidate] = {}
    refused: PolicyError | None = None
    for _ in range(budget + _TRIES):
        values = draw(space, rng)
        try:
            changed = with_values(text, values)
            parse_policy_spec(changed, find=find)
        except PolicyError as error:
            refused = error
            continue
        found.setdefault(changed, Candidate(values, changed, 0.0, 0))
        if len(found) == budget:
            break
    if not found and refused is not None:
        raise refused
    return list(found.values())


def _named(values: Mapping[Path, Value]) -> dict[str, Value]:
    return {".".join(path): value for path, value in values.items()}

"""One world that policies earn in: requests, a machine, its clock, and what is known of it at the start.

A request's text decides where a draft agrees, in whatever round it is drafted, so policies and fixed depths serve the
same text and their goodputs compare exactly. `adaptspec.simulation` replays it; nothing here simulates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

import numpy as np

from adaptspec.control.cost_profile import CostProfile, DrafterCost
from adaptspec.control.language.library import find_policy
from adaptspec.control.language.loader import load_policy_spec, parse_policy_spec
from adaptspec.control.language.spec import PolicySpec
from adaptspec.rounds import RoundRecord
from adaptspec.simulation.machine import Curve, DraftTimes
from adaptspec.simulation.machine import Machine as SimulatedMachine
from adaptspec.simulation.scenarios import Schedule, Stream
from adaptspec.simulation.simulator import ReplayStats, SimulatorSettings, replay, static_spec
from adaptspec.simulation.tape import Tape, join
from tests.policies.late import late
from tests.policies.tapes import Kind, with_candidates, written

HEADER = "apiVersion: adaptspec.dev/v1\nkind: SpeculationPolicy\nmetadata: {name: tested}\nspec:\n"
DRAFTERS = ("draft-model", "ngram")
DEPTHS = (1, 2, 3, 5, 7)
_PACED_ROUNDS = 50_000  # rounds for which stalls are drawn
StartProfile = Callable[[CostProfile, np.random.Generator], CostProfile]


@dataclass(frozen=True)
class Machine:
    """True seconds of passes, by their packed tokens; the defaults have the ratios of a small target on two cores.

    Inside another engine, a step whose rows verify different numbers of tokens takes `ragged` times as long.
    """

    name: str = "cpu"
    verify_tokens: tuple[float, ...] = (1, 2, 4, 8, 16)
    verify_ms: tuple[float, ...] = (1.2, 1.4, 1.7, 2.1, 2.8)
    step_ms: float = 0.2
    step_row_ms: float = 0.01
    catch_up_us: float = 5.0
    overhead_ms: float = 0.15
    lookup_us: float = 10.0
    ragged: float = 1.0

    def verify(self, tokens: float) -> float:
        """Seconds of a pass of the target over `tokens` tokens."""
        return self._curve.at(tokens)

    def step(self, rows: int) -> float:
        """Seconds of a pass of the draft model over one token of each of `rows` rows."""
        return (self.step_ms + self.step_row_ms * (rows - 1)) / 1e3

    @property
    def _curve(self) -> Curve:
        return Curve(self.verify_tokens, tuple(ms / 1e3 for ms in self.verify_ms))

    def costs(self) -> SimulatedMachine:
        """What the simulator charges."""
        lookup = DraftTimes(per_row=self.lookup_us / 1e6)
        model = DraftTimes(Curve((1, 2), (self.step(1), self.step(2))), self.catch_up_us / 1e6)
        drafters = {"draft-model": model, "ngram": lookup, "counts": lookup}
        overhead = self.overhead_ms / 1e3
        return SimulatedMachine(self.name, self._curve, drafters, overhead=overhead, profile=self.profile())

    def profile(self) -> CostProfile:
        """The table of its passes."""
        rows, tokens = (1, 2, 4, 8, 16), (1, 2, 3, 4, 5, 6, 7, 8)
        return CostProfile(
            rows=rows,
            tokens=tokens,
            verify=tuple(tuple(self.verify(r * t) for t in tokens) for r in rows),
            drafters={"draft-model": DrafterCost((1, 16), (self.step(1), self.step(16)), self.catch_up_us / 1e6)},
            overhead=self.overhead_ms / 1e3,
        )


CPU = Machine()
GPU = Machine("gpu", (1, 17), (5.92, 6.26), step_ms=0.6, step_row_ms=0.002, catch_up_us=2.0, overhead_ms=1.2)
# A 4-bit model whose passes take longer by steps: 3 tokens cost as much as 2, and 5 as much as 8.
STEPPED = Machine("stepped", (1, 2, 3, 4, 5, 8, 9, 16, 32), (11, 14, 14, 21, 33, 34, 45, 62, 119), 1.5, 0.3, 200, 0.3)


@dataclass(frozen=True)
class Phase:
    """Requests that come one after another, of these kinds in turn; `length` tokens each."""

    kinds: tuple[Kind, ...]
    requests: int
    length: int = 128
    prompt: int = 64


@dataclass(frozen=True)
class Clock:
    """What happens to the seconds of rounds: log-normal noise, stalls, and a slow spell.

    One round in `1 / stalls` takes `stall` times as long; rounds `slow[0]` to `slow[1]` take `slow[2]` times as long.
    """

    noise: float = 0.02
    stalls: float = 0.0
    stall: float = 20.0
    slow: tuple[int, int, float] = (0, 0, 1.0)

    def pace(self, seed: int) -> Callable[[int], float]:
        """By what the seconds of a round, counted from 0, are multiplied."""
        stalled = np.random.default_rng(seed).random(_PACED_ROUNDS) < self.stalls
        begin, end, slower = self.slow
        return lambda n: (self.stall if stalled[n % _PACED_ROUNDS] else 1.0) * (slower if begin <= n < end else 1.0)


CALM = Clock()


class Setting(NamedTuple):
    """A fixed depth of one drafter; depth 0 is plain decoding."""

    depth: int
    drafter: str = "draft-model"


OFF = Setting(0)


class Outcome(NamedTuple):
    """What a policy did after the world's settling time."""

    goodput: float  # tokens per second, as if no round had stalled
    drafting: float  # share of the row-rounds that drafted
    switches: float  # changes of a request's depth per 1,000 row-rounds, over the whole run


@dataclass(frozen=True)
class World:
    """A situation. `settled`: share of its tokens after which a policy is measured."""

    name: str
    phases: tuple[Phase, ...]
    best: Setting  # the best of its settings, in hindsight
    batch: tuple[int, ...] = (1,)  # requests at once, in stages of equal length
    machine: Machine = CPU
    clock: Clock = CALM
    start: StartProfile | None = None  # what is known of costs at the start, made of the truth
    lag: int = 0  # decisions that are made before a round is learned from
    prefill: int = 0  # prompt tokens that are read per round; 0: prompts have been read
    settled: float = 0.0
    candidates: bool = field(default=False, kw_only=True)  # the draft model has further candidates, for trees

    def tape(self, seed: int) -> Tape:
        """Its requests."""
        tapes = []
        for phase in self.phases:
            for number in range(phase.requests):
                kind, name = phase.kinds[number % len(phase.kinds)], f"r{len(tapes)}"
                own = 10_000 * seed + len(tapes)
                tapes.append(written(name, kind, phase.length, prompt=phase.prompt, seed=own))
        tape = join(tapes)
        return with_candidates(tape, seed=seed) if self.candidates else tape

    def stream(self, seed: int) -> Stream:
        """Its requests in the order in which they come."""
        tape = self.tape(seed)
        return Stream(tape, tuple(range(len(tape))), Schedule(self.batch))

    def serve(self, policy: str, seed: int = 0) -> Outcome:
        """Have a policy, a shipped one's name or YAML, serve its requests."""
        costs, pace = self.machine.costs(), self.clock.pace(seed)
        profile = self.start and self.start(self.machine.profile(), np.random.default_rng(seed))
        tally = replay(
            seeded(spec_of(policy), seed),
            self.stream(seed),
            costs,
            SimulatorSettings(noise=self.clock.noise, seed=seed, prefill_tokens=self.prefill),
            profile=profile,
            pace=pace,
            keep=True,
            controller=late(self.lag),
        )
        return self._outcome(tally, pace)

    @property
    def settings(self) -> Sequence[Setting]:
        """The fixed depths that policies are compared with."""
        return (OFF, *(Setting(depth, name) for name in DRAFTERS for depth in DEPTHS))

    def fixed(self, setting: Setting, seed: int = 0) -> float:
        """Goodput of a fixed depth on a quiet clock."""
        return _fixed(self, setting, seed)

    def best_goodput(self, seed: int = 0) -> float:
        """That of the best fixed depth."""
        return max(self.fixed(self.best, seed), self.fixed(OFF, seed))

    def _outcome(self, tally: ReplayStats, pace: Callable[[int], float]) -> Outcome:
        measured = self._after(tally.records)
        seconds = float(sum(record.timing.total / pace(record.number - 1) for record in measured))
        quiet = math.exp(self.clock.noise**2 / 2)  # the mean of log-normal noise
        drafting = np.mean(np.concatenate([record.drafted > 0 for record in measured]))
        tokens = sum(int(record.emitted.sum()) for record in measured)
        return Outcome(tokens * quiet / seconds, float(drafting), tally.switches_per_1000)

    def _after(self, records: Sequence[RoundRecord]) -> Sequence[RoundRecord]:
        """The rounds after its settling time."""
        emitted = np.cumsum([record.emitted.sum() for record in records])
        return records[int(np.searchsorted(emitted, self.settled * emitted[-1])) :]


@cache
def _fixed(world: World, setting: Setting, seed: int) -> float:
    settings = SimulatorSettings(prefill_tokens=world.prefill)
    tally = replay(static_spec(*setting), world.stream(seed), world.machine.costs(), settings, keep=True)
    measured = world._after(tally.records)
    tokens = sum(int(record.emitted.sum()) for record in measured)
    return tokens / sum(record.timing.total for record in measured)


def spec_of(policy: str) -> PolicySpec:
    """A policy by the name of one that ships, or from YAML."""
    return parse_policy_spec(policy) if ":" in policy else load_policy_spec(find_policy(policy))


def seeded(spec: PolicySpec, seed: int) -> PolicySpec:
    """The same policy with other random draws; policies that draw nothing stay as they are.

    With the draws of one seed, five worlds would all measure the same luck.
    """
    body = spec.spec
    if "seed" not in type(body.choose).model_fields:
        return spec
    choose = body.choose.model_copy(update={"seed": seed})
    return spec.model_copy(update={"spec": body.model_copy(update={"choose": choose})})

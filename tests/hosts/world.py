"""A small engine that drafts ahead, as vLLM does, on a clock of its own: what a pilot decides for in tests.

A request's text says where a draft agrees, whatever round it is drafted in, so that depths compare exactly. A step
verifies what the one before has drafted, then the whole batch drafts as deep as its deepest row is to go.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from adaptspec.control.host import Host
from adaptspec.hosts.pilot import Pilot
from adaptspec.hosts.rounds import Plan
from adaptspec.request import SpeculationParams

VLLM = Host("vLLM", {"draft-model": "draft_model"}, deepest=5)


@dataclass(frozen=True)
class Machine:
    """Seconds of a step's parts; `noise` is the sigma of log-normal factors, one step in `stalls` takes three times."""

    base: float = 4e-3
    row: float = 1e-4
    verified: float = 1e-4
    step: float = 7e-4
    step_row: float = 2e-5
    noise: float = 0.02
    stalls: float = 0.0
    unlike: float = 1.0  # a step takes so many times as long where its rows verify unlike numbers of tokens

    def seconds(self, rows: int, drafted: Sequence[int], passes: int, prefill: int, rng: np.random.Generator) -> float:
        """`drafted` are verified, by row. `passes` of the draft; it reads along at depth 0, too."""
        whole = self.base + self.row * rows + self.verified * sum(drafted) + 1e-5 * prefill
        whole += (self.step + self.step_row * rows) * passes
        whole *= self.unlike if len(set(drafted)) > 1 else 1.0
        return whole * float(rng.lognormal(0.0, self.noise)) * (3.0 if rng.random() < self.stalls else 1.0)


USUAL = Machine()


@dataclass(eq=False)
class Guest:
    """A request: what of its text the draft agrees with, how much is written, and what is drafted for it."""

    name: str
    agrees: np.ndarray
    wishes: SpeculationParams = SpeculationParams()
    written: int = 0
    drafted: int = 0  # to be verified in the next step
    whole: bool = True  # no hole in its draft's cache


@dataclass
class World:
    """The engine. It has decided `lag` steps when it hears of the outcome of the first of them."""

    machine: Machine
    pilot: Pilot | None
    static: int | None = None
    lag: int = 1
    seed: int = 0
    now: float = 0.0
    tokens: int = 0
    admitted: int = 0
    steps: int = 0
    overdrawn: int = 0  # rows that verified more than was drawn for them
    running: list[Guest] = field(default_factory=list)
    _outcomes: deque[Callable[[], None]] = field(default_factory=deque)
    _drawn: int = 0

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    def admit(self, guest: Guest) -> None:
        self.running.append(guest)
        self.admitted += 1
        if self.pilot is not None:
            self.pilot.enter(guest.name, guest.wishes, prompt_tokens=16, max_tokens=len(guest.agrees))

    def step(self, prefill: int = 0) -> None:
        """One step of all that run."""
        running, plan = list(self.running), Plan(0, self.static or 0)
        if self.pilot is not None:
            plan = self.pilot.decide([one.name for one in running], prefill)
        drafted, accepted, emitted = [], [], []
        for one in running:
            depth = one.drafted
            right = one.agrees[one.written : one.written + depth] if one.whole else np.zeros(0, dtype=bool)
            kept = len(right) if right.all() else int(right.argmin())
            got = min(kept + 1, len(one.agrees) - one.written)
            self.overdrawn += depth > self._drawn
            drafted.append(depth)
            accepted.append(kept)
            emitted.append(got)
            one.written += got
            one.drafted = min(plan.depths.get(one.name, plan.depth), plan.depth)
            one.whole &= not plan.skip
        self._drawn = plan.depth
        passes = 0 if plan.skip else max(plan.depth, 1)
        seconds = self.machine.seconds(len(running), drafted, passes, prefill, self.rng)
        self.tokens += sum(emitted)
        self.steps += 1
        gone = [one for one in running if one.written >= len(one.agrees)]
        self.running = [one for one in self.running if one not in gone]
        self._outcomes.append(lambda: self._tell(plan, running, (drafted, accepted, emitted), gone, seconds))
        while len(self._outcomes) >= self.lag:
            self._outcomes.popleft()()

    def _tell(
        self,
        plan: Plan,
        running: Sequence[Guest],
        told: Sequence[Sequence[int]],
        gone: Sequence[Guest],
        seconds: float,
    ) -> None:
        """A step ends, while those after it are waiting."""
        self.now += seconds
        if self.pilot is not None:
            self.pilot.learn(plan, [one.name for one in running], *told)
            for one in gone:
                self.pilot.leave(one.name)


def texts(acceptance: Sequence[float], length: int, seed: int = 0) -> list[np.ndarray]:
    """One text for each rate of acceptance, which varies by token."""
    rng = np.random.default_rng(seed)
    return [rng.random(length) < rng.beta(2 * a + 1e-9, 2 * (1 - a) + 1e-9, length) for a in acceptance]


def serve(
    world: World, acceptance: Sequence[float], batch: int, steps: int, *, length: int = 128, after: int = 0
) -> float:
    """Keep `batch` requests running for `steps` steps; tokens per second after the first `after` of them."""
    begun = world.now, world.tokens
    for number in range(steps):
        if number == after:
            begun = world.now, world.tokens
        prefill = 0
        while len(world.running) < batch:
            count, prefill = world.admitted, prefill + 16
            rate = acceptance[count % len(acceptance)]
            world.admit(Guest(f"r{count}", texts([rate], length, world.seed * 7919 + count)[0]))
        world.step(prefill if number else 0)
    return (world.tokens - begun[1]) / (world.now - begun[0])

"""A world inside another engine: it drafts ahead, as vLLM does, and asks the hosts' adapter once per step.

A step verifies what the step before it drafted. Then the draft model drafts for the whole batch, as deep as the deepest
row asks for; at depth 0 it still reads the new tokens, unless the plan leaves it out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np

from adaptspec.control.controller import Controller
from adaptspec.control.host import Host
from adaptspec.hosts.pilot import Pilot
from adaptspec.hosts.rounds import Plan
from adaptspec.hosts.settings import PilotSettings
from adaptspec.request import SpeculationParams
from tests.policies.tapes import agreements
from tests.policies.world import CALM, OFF, Clock, Machine, Outcome, Setting, World

VLLM = Host("vLLM", {"draft-model": "draft_model"}, deepest=5)
# A pass of one row takes 4.1 ms, each further token 0.1 ms.
USUAL = Machine("host", (1, 101), (4.1, 14.1), step_ms=0.72, step_row_ms=0.02, catch_up_us=0.0, overhead_ms=0.0)
WIDE = replace(USUAL, name="wide", verify_ms=(4.4, 44.4))
SLOW_DRAFT = replace(USUAL, name="slow-draft", step_ms=2.0)
NO_DRAFT = replace(USUAL, name="no-draft", step_ms=0.0, step_row_ms=0.0)
PROMPT = 16


@dataclass(eq=False)
class HostRequest:
    """A request: where the draft agrees with its text, and how much of it is written."""

    name: str
    agrees: np.ndarray
    params: SpeculationParams = SpeculationParams()
    prompt: int = PROMPT
    written: int = 0
    drafted: int = 0  # tokens that the next step verifies
    cached: bool = True  # the draft model has read all of it


@dataclass
class HostEngine:
    """The engine. It has decided `lag` steps when it reports the outcome of the first of them.

    `pilot` decides, or the depth is always `fixed`.
    """

    machine: Machine
    pilot: Pilot | None = None
    fixed: int = 0
    lag: int = 1
    clock: Clock = CALM
    seed: int = 0
    reading: float = 0.0  # seconds that each reading of its time takes, so that decisions take as much
    now: float = 0.0  # seconds, with noise and stalls
    quiet: float = 0.0  # seconds without
    tokens: int = 0
    added: int = 0
    steps: int = 0
    drafting: int = 0  # rows that verified drafts, over all steps
    rows: int = 0
    overdrawn: int = 0  # rows that verified more tokens than were drafted
    running: list[HostRequest] = field(default_factory=list)
    _outcomes: deque[Callable[[], None]] = field(default_factory=deque)
    _drawn: int = 0

    def __post_init__(self) -> None:
        self._rng, self._pace = np.random.default_rng(self.seed), self.clock.pace(self.seed)

    def time(self) -> float:
        """What its clock shows."""
        self.now += self.reading
        return self.now

    def add(self, request: HostRequest) -> None:
        """A request is here; its prompt is read by the next step."""
        self.running.append(request)
        self.added += 1
        if self.pilot is not None:
            limit = len(request.agrees)
            self.pilot.enter(request.name, request.params, prompt_tokens=request.prompt, max_tokens=limit)

    def step(self, prefill: int = 0) -> None:
        """One step of all requests; `prefill` prompt tokens are read in it."""
        running, plan = list(self.running), Plan(0, self.fixed)
        if self.pilot is not None:
            plan = self.pilot.decide([one.name for one in running], prefill)
        counts = [self._advance(one, plan) for one in running]  # drafted, accepted, emitted
        drafted, accepted, emitted = ([count[i] for count in counts] for i in range(3))
        self._drawn = plan.depth
        seconds = self._seconds(drafted, plan, prefill)
        self.quiet += seconds
        seconds *= float(self._rng.lognormal(0.0, self.clock.noise)) * self._pace(self.steps)
        self.tokens += sum(emitted)
        self.steps += 1
        self.rows += len(running)
        self.drafting += sum(count > 0 for count in drafted)
        ended = [one for one in running if one.written >= len(one.agrees)]
        self.running = [one for one in self.running if one not in ended]
        self._outcomes.append(lambda: self._report(plan, running, (drafted, accepted, emitted), ended, seconds))
        while len(self._outcomes) >= self.lag:
            self._outcomes.popleft()()

    def _advance(self, request: HostRequest, plan: Plan) -> tuple[int, int, int]:
        """Verify a request's drafts, then draft for it: tokens drafted, accepted and emitted."""
        depth = request.drafted
        right = request.agrees[request.written : request.written + depth] if request.cached else np.zeros(0, bool)
        accepted = len(right) if right.all() else int(right.argmin())
        emitted = min(accepted + 1, len(request.agrees) - request.written)
        self.overdrawn += depth > self._drawn
        request.written += emitted
        request.drafted = min(plan.depths.get(request.name, plan.depth), plan.depth)
        request.cached &= not plan.skip
        return depth, accepted, emitted

    def _seconds(self, drafted: Sequence[int], plan: Plan, prefill: int) -> float:
        """What a step takes on a quiet clock."""
        rows, machine = len(drafted), self.machine
        passes = 0 if plan.skip else max(plan.depth, 1)
        seconds = machine.verify(rows + sum(drafted) + prefill) + machine.step(rows) * passes
        return seconds * (machine.ragged if len(set(drafted)) > 1 else 1.0)

    def _report(
        self,
        plan: Plan,
        running: Sequence[HostRequest],
        counts: Sequence[Sequence[int]],
        ended: Sequence[HostRequest],
        seconds: float,
    ) -> None:
        """A step has ended; later ones may have been decided."""
        self.now += seconds
        if self.pilot is not None:
            self.pilot.learn(plan, [one.name for one in running], *counts)
            for one in ended:
                self.pilot.leave(one.name)


def piloted(
    machine: Machine = USUAL,
    *,
    lag: int = 1,
    clock: Clock = CALM,
    seed: int = 0,
    rows: int = 16,
    reading: float = 0.0,
    controller: type[Controller] = Controller,
    models: Mapping[str, str] | None = None,
    **settings: object,
) -> HostEngine:
    """An engine with a pilot on the engine's clock; `settings` are those of `PilotSettings`."""
    engine = HostEngine(machine, lag=lag, clock=clock, seed=seed, reading=reading)
    host, own = replace(VLLM, lag=lag), PilotSettings.model_validate(settings)
    engine.pilot = Pilot(own, host, rows, models=models, clock=engine.time, controller=controller)
    return engine


def serve(engine: HostEngine, rates: Sequence[float], batch: int, steps: int, *, length: int = 128) -> float:
    """Keep `batch` requests running for `steps` steps, their rates of acceptance in turn: tokens per second."""
    now, tokens = engine.now, engine.tokens
    for number in range(steps):
        prefill = 0
        while len(engine.running) < batch:
            count, prefill = engine.added, prefill + PROMPT
            agrees = agreements(rates[count % len(rates)], length, engine.seed * 7919 + count)
            engine.add(HostRequest(f"r{count}", agrees))
        engine.step(prefill if number else 0)
    return (engine.tokens - tokens) / (engine.now - now)


@dataclass(frozen=True)
class HostedWorld(World):
    """A world that another engine serves. With `skip_draft` plain decoding is an engine without a draft model."""

    skip_draft: bool = field(default=False, kw_only=True)

    def serve(self, policy: str, seed: int = 0) -> Outcome:
        """Have a shipped policy decide."""
        lag = max(self.lag, 1)
        engine = piloted(self.machine, lag=lag, clock=self.clock, seed=seed, policy=policy, skip_draft=self.skip_draft)
        goodput, drafting = self._measured(engine, seed)
        assert engine.pilot is not None
        engine.pilot.close()
        assert not engine.pilot.errors
        assert not engine.overdrawn
        return Outcome(goodput, drafting, 0.0)

    @property
    def settings(self) -> Sequence[Setting]:
        """Depths of the host's only drafter."""
        return (OFF, *(Setting(depth) for depth in (1, 2, 3, 5)))

    def fixed(self, setting: Setting, seed: int = 0) -> float:
        """Goodput of a fixed depth on a quiet clock."""
        return _fixed(self, setting, seed)

    def best_goodput(self, seed: int = 0) -> float:
        """That of the best of its settings, all of which are tried: they take little time."""
        return max(self.fixed(setting, seed) for setting in self.settings)

    def _measured(self, engine: HostEngine, seed: int) -> tuple[float, float]:
        """Tokens per second after its settling time, and the share of rows that verified drafts."""
        tape, batch = self.tape(seed), self.batch[0]
        total, begun = int((tape.lengths - 1).sum()), None
        for _ in _served(engine, self._requests(seed), batch):
            if begun is None and engine.tokens >= self.settled * total:
                begun = engine.tokens, engine.quiet, engine.drafting, engine.rows
        assert begun is not None, "the world ends before it has settled"
        tokens, seconds, drafting, rows = begun
        return (engine.tokens - tokens) / (engine.quiet - seconds), (engine.drafting - drafting) / (engine.rows - rows)

    def _requests(self, seed: int) -> list[HostRequest]:
        tape = self.tape(seed)
        agreed = np.split(tape.views["draft-model"].agreed, tape.offsets[1:-1])
        return [
            HostRequest(name, own[1:], SpeculationParams(task=task or None), prompt)
            for name, task, prompt, own in zip(tape.ids, tape.tasks, tape.prompt_tokens.tolist(), agreed, strict=True)
        ]


def _served(engine: HostEngine, requests: Sequence[HostRequest], batch: int) -> Iterator[None]:
    """Step by step, until fewer requests are left than run at once."""
    waiting = deque(requests)
    while waiting or len(engine.running) >= batch:
        prefill = 0
        while waiting and len(engine.running) < batch:
            prefill += waiting[0].prompt
            engine.add(waiting.popleft())
        engine.step(prefill)
        yield


@cache
def _fixed(world: HostedWorld, setting: Setting, seed: int) -> float:
    machine = NO_DRAFT if world.skip_draft and not setting.depth else world.machine
    return world._measured(HostEngine(machine, fixed=setting.depth), seed)[0]

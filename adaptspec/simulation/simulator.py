"""A simulated engine: the engine's own rounds over the requests of a tape, in the seconds of a machine.

Two things differ from a real engine: there is always room in the cache, and all requests are verified by one method.
Seconds are the machine's, with seeded noise if asked for, so a run is the same everywhere.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np

from adaptspec.arrays import IntArray
from adaptspec.control.controller import Controller
from adaptspec.control.cost_model import CostModel
from adaptspec.control.cost_profile import CostProfile
from adaptspec.control.language.loader import build_policy, parse_policy_spec
from adaptspec.control.language.spec import PolicySpec
from adaptspec.control.language.verification_spec import BlockSpec, CoupledSpec, RejectionSpec
from adaptspec.control.policy import BatchSignals
from adaptspec.control.routing import routes_of, with_used
from adaptspec.control.tasks import TaskNames
from adaptspec.decision import Decision, Reason
from adaptspec.drafters import available_drafters
from adaptspec.engine.core import EngineCore, EngineLimits
from adaptspec.engine.detokenizer import Detokenizer
from adaptspec.engine.inputs import InputProcessor
from adaptspec.engine.policy_settings import PolicySettings
from adaptspec.engine.sequence import Sequence
from adaptspec.errors import TapeError
from adaptspec.request import Request, SamplingParams, SpeculationParams
from adaptspec.results import Completion
from adaptspec.rounds import RoundRecord
from adaptspec.simulation.machine import Machine
from adaptspec.simulation.scenarios import Stream
from adaptspec.simulation.tape import Tape
from adaptspec.simulation.tape_drafters import RIGHT, RIGHT_END, WRONG, WRONG_END
from adaptspec.simulation.tape_executor import TapeExecutor
from adaptspec.verification import make_method
from adaptspec.verification.method import Method

_MAX_DEPTH = 64
_CONTEXT = 2**31  # tokens: no recorded request meets it


@dataclass(frozen=True)
class SimulatorSettings:
    """How the simulated engine is set up; defaults are the engine's.

    `prefill_tokens` prompt tokens are read per round; 0: prompts are read when requests start, and their first tokens
    are there. `noise` is the sigma of log-normal factors on each part of a round.
    """

    drafters: tuple[str, ...] = available_drafters(draft=True)
    max_depth: int = _MAX_DEPTH
    catch_up_tokens: int = 512
    prefill_tokens: int = 0
    noise: float = 0.0
    seed: int = 0


def drafters_of(tape: Tape, machine: Machine, settings: SimulatorSettings) -> tuple[str, ...]:
    """The drafters of a simulated engine: those of the settings that tape and machine have."""
    return tuple(name for name in settings.drafters if name in tape.views and name in machine.drafters)


def started(request_id: str) -> int:
    """The index in a stream's order of a request in round records."""
    return int(request_id.rpartition("#")[2]) - 1


class Simulator:
    """Serves a stream of requests. Call `round` until `over`."""

    def __init__(
        self,
        stream: Stream,
        machine: Machine,
        controller: Controller,
        settings: SimulatorSettings = SimulatorSettings(),
        pace: Callable[[int], float] | None = None,
    ) -> None:
        """`pace(round)` multiplies the time of that round: stalls and slow spells of a machine. Raises TapeError: tape
        and machine have none of the drafters in common.
        """
        tape, rows = stream.tape, stream.max_rows
        self.drafters = drafters_of(tape, machine, settings)
        if not self.drafters:
            raise TapeError(
                f"the tape knows {', '.join(tape.drafters) or 'no drafter'}, the cost table "
                f"{', '.join(machine.drafters) or 'none'}; they need one in common with {', '.join(settings.drafters)}"
            )
        self._stream = stream
        self._settings = settings
        self._pace = pace
        self._noise = np.random.default_rng(settings.seed)
        self._records: list[RoundRecord] = []
        self._rounds, self._started = 0, 0
        self._waiting = deque(stream.order)
        self._executor = TapeExecutor(
            tape,
            machine,
            self.drafters,
            rows,
            catch_up_tokens=settings.catch_up_tokens,
            request_of=lambda request_id: stream.order[started(request_id)],
            factors=self._factors,
        )
        self._core = _StrictCore(
            self._executor,
            controller,
            cast(InputProcessor, _TapeInputs(prompts_read=not settings.prefill_tokens)),
            dict.fromkeys(controller.policies, PolicySettings(make_method("coupled"))),
            sinks=[self],
            limits=EngineLimits(rows, settings.prefill_tokens or 1, settings.max_depth, prefix_cache="off"),
            timer=lambda: self._executor.now,
            clock=lambda: math.nan,
        )
        self._admit()

    @property
    def firsts(self) -> int:
        """First tokens of requests whose prompts were read: they are in no round's record."""
        return self._executor.firsts

    @property
    def over(self) -> bool:
        """No request waits, and fewer run than the stream asks for: the rest would say little about a policy."""
        running = self._in_engine
        return not self._waiting and (not running or running < self._stream.rows_at(self._started))

    def round(self) -> RoundRecord:
        """Run one round of the engine, then admit the next requests."""
        self._executor.now = 0.0
        self._core.step()
        self._rounds += 1
        self._admit()
        return self._records.pop()

    def started(self, request: Request) -> None:
        """See `Sink.started`."""

    def emit(self, record: RoundRecord) -> None:
        self._records.append(record)

    def finished(self, request: Request, completion: Completion) -> None:
        """See `Sink.finished`."""

    @property
    def _in_engine(self) -> int:
        return len(self._core.scheduler.running) + len(self._core.scheduler.waiting)

    def _admit(self) -> None:
        tape, read = self._stream.tape, not self._settings.prefill_tokens
        while self._waiting and self._in_engine < self._stream.rows_at(self._started):
            index = self._waiting.popleft()
            self._started += 1
            if read and tape.lengths[index] <= 1:
                continue  # its only token comes with the prompt
            # Every stand-in ends the text, but not before the recorded length.
            sampling = SamplingParams(
                int(tape.max_tokens[index]),
                min_tokens=int(tape.lengths[index]),
                stop_token_ids=(WRONG, WRONG_END, RIGHT, RIGHT_END),
            )
            task = SpeculationParams(task=tape.tasks[index] or None)
            # A request may arrive several times, and only the length of its prompt is known.
            name, prompt = f"{tape.ids[index]}#{self._started}", range(int(tape.prompt_tokens[index]))
            self._core.add(Request(name, prompt, sampling, task, streamed=False))

    def _factors(self) -> tuple[float, float, float]:
        """The factors of a round's drafting, its verify pass and its overhead."""
        pace = 1.0 if self._pace is None else self._pace(self._rounds)
        if not self._settings.noise:
            return pace, pace, pace
        jitter = np.exp(self._noise.normal(0.0, self._settings.noise, 3)) * pace
        return float(jitter[0]), float(jitter[1]), float(jitter[2])


class _StrictCore(EngineCore):
    """An engine whose decisions and reports may raise: no request is served that an error must not harm."""

    def _decide(self, signals: BatchSignals) -> Decision:
        return self.controller.decide(signals)

    def _report(self, report: Callable[..., None], *news: object) -> None:
        report(*news)


class _NoText:
    """The text of a recorded request: there is none. In place of a `Detokenizer`."""

    text = ""

    def push(self, token: int, may_stop: bool = True) -> bool:  # noqa: ARG002
        return False

    def close(self) -> bool:
        return False

    def take(self, final: bool = False) -> str:  # noqa: ARG002
        return ""


class _TapeInputs:
    """Makes the sequences of recorded requests, with the methods of `InputProcessor` that the engine core calls."""

    def __init__(self, *, prompts_read: bool) -> None:
        """`prompts_read`: sequences begin with their first token."""
        self._prompts_read = prompts_read

    def prepared(self, request: Request) -> Request:
        """There is no prompt to detect a task from."""
        return request

    def sequence(self, request: Request, method: Method) -> Sequence:
        text = cast(Detokenizer, _NoText())
        made = Sequence(request, method, text, seed=0, eos=(), context=_CONTEXT, now=math.nan)
        if self._prompts_read:
            made.append([RIGHT], math.nan)
            made.read_text()
        return made


@dataclass
class ReplayStats:
    """Sums over the rounds of a run.

    Row-rounds are rounds of single requests; a row's share of a round's time is one over its rows. `switches` counts
    row-rounds whose decided depth differs from the one before of the same request, `trials` those that explored or
    probed.
    """

    tokens: int = 0
    seconds: float = 0.0
    rounds: int = 0
    row_rounds: int = 0
    drafting: int = 0  # row-rounds that drafted
    drafted: int = 0
    accepted: int = 0
    switches: int = 0
    depths: IntArray = field(default_factory=lambda: np.zeros(_MAX_DEPTH + 1, dtype=np.int64))  # row-rounds by depth
    records: list[RoundRecord] = field(default_factory=list)
    trials: int = 0
    trial_tokens: int = 0
    trial_seconds: float = 0.0
    request_seconds: dict[str, float] = field(default_factory=dict)  # each request's share of its rounds
    _last_depth: dict[str, int] = field(default_factory=dict)

    @property
    def goodput(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens per drafting row-round, the one that every pass brings included."""
        return 1.0 + (self.accepted / self.drafting if self.drafting else 0.0)

    @property
    def duty(self) -> float:
        """Share of the row-rounds that drafted."""
        return self.drafting / self.row_rounds if self.row_rounds else 0.0

    @property
    def switches_per_1000(self) -> float:
        """Switches per 1,000 row-rounds."""
        return 1e3 * self.switches / self.row_rounds if self.row_rounds else 0.0

    @property
    def switches_per_1000_tokens(self) -> float:
        """Switches per 1,000 tokens."""
        return 1e3 * self.switches / self.tokens if self.tokens else 0.0

    @property
    def probing_cost(self) -> float:
        """Share of the time that trials lost: their seconds less those of as many tokens in the other row-rounds.

        Below 0 where trials earned more.
        """
        seconds, tokens = self.seconds - self.trial_seconds, self.tokens - self.trial_tokens
        if not self.trials or tokens <= 0:
            return 0.0
        return (self.trial_seconds - self.trial_tokens * seconds / tokens) / self.seconds

    def add(self, record: RoundRecord) -> None:
        """Add a round."""
        self.rounds += 1
        self.seconds += record.timing.total
        self.tokens += int(record.emitted.sum())
        depths = record.depths.tolist()
        share = record.timing.total / max(len(depths), 1)
        trials = (record.reasons == Reason.EXPLORE) | (record.reasons == Reason.PROBE)
        self.trials += int(trials.sum())
        self.trial_tokens += int(record.emitted[trials].sum())
        self.trial_seconds += share * int(trials.sum())
        self.row_rounds += len(depths)
        self.drafting += int(np.count_nonzero(record.drafted))
        self.drafted += int(record.drafted.sum())
        self.accepted += int(record.accepted.sum())
        for name, depth in zip(record.request_ids, depths, strict=True):
            self.depths[depth] += 1
            self.request_seconds[name] = self.request_seconds.get(name, 0.0) + share
            self.switches += self._last_depth.get(name, depth) != depth
            self._last_depth[name] = depth


def replay(
    spec: PolicySpec,
    stream: Stream,
    machine: Machine,
    settings: SimulatorSettings = SimulatorSettings(),
    *,
    profile: CostProfile | None = None,
    pace: Callable[[int], float] | None = None,
    keep: bool = False,
    controller: Callable[..., Controller] = Controller,
) -> ReplayStats:
    """Serve a stream under a policy, to its end.

    The policy starts from the cost `profile` (default: the machine's own); `keep` keeps the round records; `controller`
    makes the controller. The verification method is the policy's: under `rejection` (and `block`, which never does
    worse) agreement is drawn by chance, from the settings' seed. A draft temperature is ignored.

    Raises:
        TapeError: tape and machine have no drafter in common with the settings, or the verification is lossy, or not
            the same in all policies that this one uses.
        PolicyError, ConfigError: the policy cannot be built, or wants a drafter that is not there.
    """
    if _by_chance(spec):
        stream = replace(stream, tape=stream.tape.under_rejection(settings.seed))
    cost = CostModel(profile or machine.profile())
    task_names = TaskNames()
    drafters = drafters_of(stream.tape, machine, settings)
    specs = with_used([spec.with_drafters(drafters)])
    policies = {used.name: build_policy(used, cost, stream.max_rows, task_names) for used in specs}
    deciding = controller(
        policies, spec.name, drafters, stream.max_rows, cost=cost, task_names=task_names, routes=routes_of(spec)
    )
    return run(Simulator(stream, machine, deciding, settings, pace), keep=keep)


def run(simulator: Simulator, *, keep: bool = False) -> ReplayStats:
    """Run a simulator to its end."""
    stats = ReplayStats()
    while not simulator.over:
        record = simulator.round()
        stats.add(record)
        if keep:
            stats.records.append(record)
    stats.tokens += simulator.firsts
    return stats


def static_spec(depth: int, drafter: str = "draft-model", width: int = 1, name: str = "") -> PolicySpec:
    """The policy that always drafts `depth` tokens, `width` candidates each; depth 0 is plain decoding."""
    name = name or f"static-{depth}"
    return parse_policy_spec(
        "apiVersion: adaptspec.dev/v1\nkind: SpeculationPolicy\n"
        f"metadata: {{name: {name}}}\n"
        f"spec: {{choose: {{algorithm: static, depth: {depth}}}, drafters: [{drafter}], max-width: {width}}}\n",
        name,
    )


def _by_chance(spec: PolicySpec) -> bool:
    """Whether agreement is a matter of chance under a policy and all those that it uses."""
    methods = [used.verification for used in with_used([spec])]
    lossy = [used.method for used in methods if not isinstance(used, CoupledSpec | RejectionSpec | BlockSpec)]
    if lossy:
        raise TapeError(
            f"policy {spec.name} verifies by {lossy[0]}, which may change the text: a tape cannot "
            "follow it; simulate it with a lossless method"
        )
    coupled = {isinstance(used, CoupledSpec) for used in methods}
    if len(coupled) > 1:
        raise TapeError(
            f"policy {spec.name} and those that it uses verify partly by coupled, partly by chance: a tape is replayed "
            "in one way; simulate them with one method"
        )
    return coupled == {False}

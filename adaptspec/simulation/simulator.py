"""A simulated engine: the engine's own rounds over the requests of a tape, timed by a cost table.

What differs from a real one: there is always room in the cache, and all requests are verified by one method. Seconds
are the cost table's, with seeded noise if asked for, so a run is the same everywhere.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from adaptspec.control.controller import Controller
from adaptspec.control.policy import BatchSignals, Decision
from adaptspec.drafters import available_drafters
from adaptspec.engine.core import EngineCore, EngineLimits
from adaptspec.engine.policy_settings import PolicySettings
from adaptspec.errors import TapeError
from adaptspec.request import Request, SpeculationParams
from adaptspec.simulation.cost_profiles import MachineCosts
from adaptspec.simulation.scenarios import Stream
from adaptspec.simulation.tape import Tape
from adaptspec.simulation.tape_executor import TapeExecutor, TapeInputs
from adaptspec.types import Completion, RoundRecord
from adaptspec.verification import make_method


@dataclass(frozen=True)
class SimulatorSettings:
    """How the simulated engine is set up; defaults are the engine's. `prefill_tokens` of prompt are read per round; 0:
    prompts have been read when a request starts, and its first token is there. `noise` is the sigma of log-normal
    factors on each part of a round.
    """

    drafters: tuple[str, ...] = available_drafters(draft=True)
    max_depth: int = 64
    catch_up_tokens: int = 512
    prefill_tokens: int = 0
    noise: float = 0.0
    seed: int = 0


def drafters_of(tape: Tape, costs: MachineCosts, settings: SimulatorSettings) -> tuple[str, ...]:
    """The drafters of a simulated engine: those wanted that the tape has recorded and the costs know."""
    return tuple(name for name in settings.drafters if name in tape.views and name in costs.drafters)


def started(name: str) -> int:
    """Which of a stream's requests, in order, goes by this name in round records."""
    return int(name.rpartition("#")[2]) - 1


class Simulator:
    """Serves a stream of requests. Call `round` until `over`."""

    def __init__(
        self,
        stream: Stream,
        costs: MachineCosts,
        controller: Controller,
        settings: SimulatorSettings = SimulatorSettings(),
        pace: Callable[[int], float] | None = None,
    ) -> None:
        """`pace(round)` multiplies that round's time: a machine's bad moments. Raises TapeError: neither tape nor costs
        know any of the drafters.
        """
        tape, rows = stream.tape, stream.most_rows
        self.drafters = drafters_of(tape, costs, settings)
        if not self.drafters:
            raise TapeError(
                f"the tape knows {', '.join(tape.drafters) or 'no drafter'}, the cost table "
                f"{', '.join(costs.drafters) or 'none'}; they need one in common with {', '.join(settings.drafters)}"
            )
        self._stream = stream
        self._settings = settings
        self._pace = pace
        self._noise = np.random.default_rng(settings.seed)
        self._records: list[RoundRecord] = []
        self._rounds, self._started = 0, 0
        self._waiting = deque(stream.order)
        executor = TapeExecutor(
            tape, costs, self.drafters, rows, catch_up_tokens=settings.catch_up_tokens, factors=self._factors
        )
        inputs = TapeInputs(tape, lambda name: stream.order[started(name)], emitted=int(not settings.prefill_tokens))
        self._executor = executor
        self._core = _Rounds(
            executor,
            controller,
            inputs,
            dict.fromkeys(controller.policies, PolicySettings(make_method("coupled"))),
            sinks=[self],
            limits=EngineLimits(rows, settings.prefill_tokens or 1, settings.max_depth),
            timer=lambda: executor.now,
            clock=lambda: math.nan,
        )
        self._admit()

    @property
    def firsts(self) -> int:
        """First tokens of requests whose prompts were read: no round's record counts them."""
        return self._executor.firsts

    @property
    def over(self) -> bool:
        """Nothing waits, and fewer run than the stream asks for: what is left would say little of a policy."""
        running = self._in_engine
        return not self._waiting and (not running or running < self._stream.rows_at(self._started))

    def round(self) -> RoundRecord:
        """One round of the engine; then the next requests are let in."""
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
                continue  # its only token is there
            name = f"{tape.ids[index]}#{self._started}"  # a request may come several times
            prompt = range(int(tape.prompt_tokens[index]))  # only its length is known
            self._core.add(Request(name, prompt, speculation=SpeculationParams(task=tape.tasks[index] or None)))

    def _factors(self) -> tuple[float, float, float]:
        """What multiplies a round's drafting, its verify pass and the rest."""
        pace = 1.0 if self._pace is None else self._pace(self._rounds)
        if not self._settings.noise:
            return pace, pace, pace
        jitter = np.exp(self._noise.normal(0.0, self._settings.noise, 3)) * pace
        return float(jitter[0]), float(jitter[1]), float(jitter[2])


class _Rounds(EngineCore):
    """Rounds in which an error is one: nobody is served who should not suffer from it."""

    def _decide(self, signals: BatchSignals) -> Decision:
        return self.controller.decide(signals)

    def _report(self, told: Callable[..., None], *news: object) -> None:
        told(*news)

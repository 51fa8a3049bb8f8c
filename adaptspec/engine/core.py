"""The engine without threads: requests in, rounds, text out.

One object on one thread. Models are behind its `Executor`, decisions behind its `Controller`.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from adaptspec.arrays import IntArray
from adaptspec.control.controller import Controller
from adaptspec.control.cost_model import CostModel
from adaptspec.control.policy import BatchSignals
from adaptspec.control.tasks import OTHER
from adaptspec.decision import Decision, Reason
from adaptspec.engine.executor import Clock, Executor, Flight, Kept, Landed
from adaptspec.engine.inputs import InputProcessor
from adaptspec.engine.policy_settings import PolicySettings
from adaptspec.engine.prefix_cache import Mode, scope_of
from adaptspec.engine.scheduler import Scheduler, held_row
from adaptspec.engine.sequence import Sequence as Seq
from adaptspec.engine.signals import round_signals
from adaptspec.errors import ConfigError, UnknownModelError
from adaptspec.models.draft import Draft
from adaptspec.progress import report_progress
from adaptspec.request import Request
from adaptspec.results import Delta, FinishReason
from adaptspec.rounds import RoundRecord, RoundWork, Sink, Timing

_log = logging.getLogger(__name__)
LOG_EVERY = 1000  # failed decisions per line of the log: several thousand rounds fit into a second
READING_SECONDS = 1.0  # maximum seconds of prompt reading in a round in which no row decodes
# Minimum of prompt reading in a round: gaps of 30 ms are not noticed, and small passes cost more per token. With two
# tokens in place of four, llama.cpp's rounds were 5 % shorter and a prompt of 2,000 tokens took 1.7 times as long.
LEAST_PREFILL_SECONDS, LEAST_PREFILL_TOKENS = 0.03, 4


@dataclass(frozen=True)
class EngineLimits:
    """How much runs at once: rows, prompt tokens of a round (0: chosen for the device), and the deepest draft.

    `prefill_seconds`: maximum time of prompt reading in a round with decoding rows. `prefix_cache`: requests reuse
    cached tokens of the same API key (`key`), of all requests (`shared`), or of none (`off`).
    """

    max_rows: int = 16
    prefill_tokens: int = 0
    max_depth: int = 64
    prefill_seconds: float = 0.2
    prefix_cache: Mode = "key"

    def __post_init__(self) -> None:
        if self.max_rows < 1 or self.prefill_tokens < 0 or self.max_depth < 0:
            raise ConfigError(f"{self}: rows must be at least 1, prefill tokens and the depth at least 0")
        if not 0.0 < self.prefill_seconds < math.inf:
            raise ConfigError(f"prefill seconds are {self.prefill_seconds}; they must be above 0")

    def settled(self, *, cpu: bool) -> EngineLimits:
        """With a number of prompt tokens: a device is busy with several thousand, decoding rows wait for them."""
        return replace(self, prefill_tokens=self.prefill_tokens or (512 if cpu else 2048))


class EngineCore:
    """Runs rounds over the requests it is given."""

    def __init__(
        self,
        executor: Executor,
        controller: Controller,
        inputs: InputProcessor,
        settings: Mapping[str, PolicySettings],
        *,
        sinks: Sequence[Sink] = (),
        limits: EngineLimits = EngineLimits(),
        timer: Callable[[], float] = time.perf_counter,
        clock: Callable[[], float] = time.monotonic,
        costs: CostModel | None = None,
    ) -> None:
        """`settings` are those of every policy of the controller. `timer` gives the seconds that rounds
        are timed by: costs are learned from nothing else; `clock` says when something happened. `costs` bound the
        prompt tokens of a round by their time; None: only `limits` bound them.

        Raises:
            ConfigError: a method would be biased by what a drafter of its policy may leave out.
        """
        for name, policy in controller.policies.items():
            settings[name].check(name, policy, executor.anticipating)
        self.executor = executor
        self.controller = controller
        self.inputs = inputs
        self.settings = dict(settings)
        self.limits = limits = limits.settled(cpu=True)
        self.scheduler = Scheduler(
            executor.caches,
            limits.max_rows,
            prefill_budget=self._prefill_budget,
            max_depth=limits.max_depth,
            on_start=self._on_start,
            on_leave=self._on_leave,
        )
        self._costs = costs
        self._sinks = tuple(sinks)
        self._timer = timer
        self._clock = clock
        self._number = 0
        self._flight: Flight | None = None
        self._failed_decisions = 0
        self._outbox: list[Delta] = []
        self._told_full = False  # that there is no room for more tasks

    @torch.inference_mode()
    def step(self) -> list[Delta]:
        """One round: what each request gained, in no particular order.

        Where rounds run by themselves, the next one is launched before the text of this one is read.
        """
        flight, self._flight = self._flight or self._launch(), None
        if flight is None:
            return self._collect()
        landed = self._land(flight)
        if self.executor.overlaps and not self.scheduler.suspecting:
            self._flight = self._launch()
        return self._tell(landed)

    @property
    def idle(self) -> bool:
        return self.scheduler.idle and self._flight is None

    def check(self, request: Request) -> None:
        """Refuse what cannot be served; touches no state, so any thread may call it.

        Raises:
            RequestError: with the field at fault in `param`.
        """
        self.inputs.check(request)
        self.check_policy(request)

    def check_policy(self, request: Request) -> None:
        """Raise UnknownModelError if its policy is not served (any more)."""
        policy, served = request.speculation.policy, self.controller.policies
        if policy is not None and policy not in served:
            raise UnknownModelError(
                f"there is no policy {policy!r} here; served are: {', '.join(served)}", "adaptspec.policy"
            )

    def add(self, request: Request) -> list[Delta]:
        """Queue a checked request; nothing comes out yet. Detects its task if nobody has done so.

        A task for which there is no room any more counts as `OTHER`, and is called so from here on. What a canary's
        share was when the request came stays its own.
        """
        request = self.inputs.prepared(request)
        task, policy = self._numbered(request.speculation.task), self.controller.assigned(request)
        request = replace(request, speculation=replace(request.speculation, task=task, policy=policy))
        sequence = self.inputs.sequence(request, self.settings[policy].method)
        sequence.scope = self.settings[policy].scope(request.key)
        sequence.prefix_scope = scope_of(request, self.limits.prefix_cache)
        self.scheduler.add(sequence)
        return []

    def abort(self, request_id: str) -> list[Delta]:
        """End a request where it stands; an unknown id is one that has already ended."""
        return self._abort(lambda sequence: sequence.request.id == request_id, FinishReason.ABORT, None)

    def abort_all(self, finish: FinishReason, error: str) -> list[Delta]:
        """End every request, waiting ones too."""
        return self._abort(lambda _: True, finish, error)

    def recover(self, error: Exception) -> list[Delta]:
        """After a round that failed half-way: end the request that made it fail, once it is known which one it is."""
        for sequence in list(self.scheduler.running):
            report_progress()
            self._read_text(sequence)  # it may have ended well before
            if sequence.finish is not None:  # it ended in this very round, before something failed
                self._end(sequence, sequence.finish, sequence.error, trusted=False)
        self._flight, culprit = None, self.scheduler.failed()
        if culprit is not None:
            self._end(culprit, FinishReason.ERROR, f"{type(error).__name__}: {error}")
        return self._collect()

    def _prefill_budget(self, rows: int, context: int) -> int:
        """Maximum prompt tokens of a round with `rows` decoding rows.

        They may take twice the time of the round without them, so that decoding slows down to a third at most. Short
        rounds may read for `LEAST_PREFILL_SECONDS`; `prefill_seconds` is the maximum.
        """
        most = self.limits.prefill_tokens
        if self._costs is None:
            return most
        seconds = READING_SECONDS
        if rows:
            plain = self._costs.plain_seconds(rows, float(context))
            seconds = min(self.limits.prefill_seconds, max(2.0 * plain, LEAST_PREFILL_SECONDS))
        return min(max(self._costs.prefill_tokens_within(seconds), LEAST_PREFILL_TOKENS), most)

    def _launch(self) -> Flight | None:
        """Begin a round; None if nobody can run before texts are read."""
        clock = Clock(self._timer)
        batch = self.scheduler.next_batch()
        if not batch.decoding and not batch.chunks:
            return None
        signals = round_signals(batch, self.executor, self.controller)
        decision = self._decide(signals)
        clock.lap("decide")
        pending = self.executor.launch(batch, decision)
        clock.lap("draft")
        return Flight(batch, signals, decision, pending, clock)

    def _decide(self, signals: BatchSignals) -> Decision:
        """The controller's decision. A policy that fails costs its drafts, and no request its answer."""
        try:
            return self.controller.decide(signals)
        except Exception:  # noqa: BLE001 - plain decoding needs no decision
            self._failed_decisions += 1
            if self._failed_decisions % LOG_EVERY == 1:
                _log.exception(
                    "a round could not be decided and has no drafts; this has happened %d times", self._failed_decisions
                )
            no_drafts = np.zeros(signals.batch_size, dtype=np.int64)
            return Decision(no_drafts, np.full_like(no_drafts, int(Reason.GUARD)), no_drafts)

    def _land(self, flight: Flight) -> Landed:
        """End it: append what was accepted and roll the caches back to it. The next may begin then."""
        batch, decision = flight.batch, flight.decision
        gone = [sequence.finish is not None for sequence in batch.emitting]  # while the round ran
        draft, verdict, seconds, verified = self.executor.finish(flight.pending)
        flight.clock.lap("verify")
        now, size = self._clock(), len(batch.decoding)
        taken: list[int] = []
        kept: list[Kept] = []
        for i, sequence in enumerate(batch.emitting):
            report_progress()
            if sequence.finish is not None:
                continue  # it has gone, or nothing can be drawn for it
            places, length = verdict.places(i), sequence.length
            by = self._proposers(i, places, decision, draft) if sequence.request.speculation.provenance else ()
            try:
                sequence.take(verdict.kept(draft, i), now, by)
            except Exception as error:  # noqa: BLE001 - its own text is at fault; the others' is not
                self._fail(sequence, error)
                continue
            taken.append(i)
            if i < size:
                # A drafter may have read on though all it drafted was cut: what was asked for tells, not what is left.
                kept.append(Kept(sequence, length, places, int(decision.drafter[i]) if decision.depths[i] else -1))
        self.executor.keep(kept)
        flight.clock.lap("commit")
        there = np.flatnonzero(np.logical_not(gone[:size])) if any(gone[:size]) else None
        # Before another round begins: drafters would then know what they are asked about.
        shadows = self.executor.shadows(batch, decision, flight.signals.context)
        seconds = seconds or (flight.clock.seconds("draft"), flight.clock.seconds("verify"))
        return Landed(
            flight,
            draft,
            verdict,
            taken,
            there,
            shadows,
            seconds,
            int(draft.counts.sum()) if verified is None else verified,
        )

    def _read(self, landed: Landed) -> IntArray:
        """Make text of what the round brought. Tokens emitted [B] by the decoding rows."""
        batch, draft = landed.flight.batch, landed.draft
        emitted, drafted = np.zeros(len(batch.decoding), dtype=np.int64), draft.depths
        for i in landed.taken:
            report_progress()
            sequence = batch.emitting[i]
            gained = self._read_text(sequence)
            if gained is not None and i < len(emitted):
                emitted[i] = gained
                accepted = min(int(landed.verdict.accepted[i]), gained)
                sequence.count_round(int(drafted[i]), accepted, int(draft.counts[i]))
        return emitted

    def _read_text(self, sequence: Seq) -> int | None:
        """Tokens of it that are emitted; None if it fails by them."""
        try:
            return sequence.read()
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(sequence, error)
            return None

    def _fail(self, sequence: Seq, error: Exception) -> None:
        _log.exception("the tokens of %s could not be committed", sequence.request.id)
        sequence.fail(f"{type(error).__name__}: {error}")

    def _proposers(self, row: int, places: list[int], decision: Decision, draft: Draft) -> list[str]:
        """Names of the drafters whose tokens stay, one for each."""
        names = self.executor.drafters
        if not places:
            return []
        if draft.tree is None:
            return [names[int(decision.drafter[row])]] * len(places)
        return [names[which] for which in draft.tree.drafters[row, places].tolist()]

    def _record(self, landed: Landed, emitted: IntArray) -> RoundRecord:
        (batch, signals, decision, _, clock), draft, verdict, _, there, shadows, seconds, verified = landed
        self._number += 1
        size = len(emitted)
        deepest = draft.tokens.shape[1] if draft.tree is None else int(draft.chain.max(initial=0))
        shadow_drafted, shadow = shadows or (None, None)
        record = RoundRecord(
            number=self._number,
            request_ids=tuple(s.request.id for s in batch.decoding),
            rows=signals.rows,
            depths=decision.depths,
            reasons=decision.reasons,
            drafter=decision.drafter,
            drafted=draft.depths[:size],
            accepted=verdict.accepted[:size],
            emitted=emitted,
            context=signals.context,
            confidence=draft.confidence[:size, :deepest],
            entropy=draft.entropy[:size, :deepest],
            branches=draft.branches(size, verdict.path),
            work=RoundWork(size, size + verified, float(signals.context.sum()), draft.work, batch.prefill_tokens),
            timing=Timing(*seconds, clock.total),
            ended=self._clock(),
            decision=decision,
            tasks=decision.tasks,
            expected=decision.expected,
            shadow=shadow,
            shadow_drafted=shadow_drafted,
            stated=signals.stated,
        )
        return record if there is None else record.take(there)

    def _tell(self, landed: Landed) -> list[Delta]:
        """Read the round's text, tell the controller and sinks of it, and hand out what requests have gained."""
        record = self._record(landed, self._read(landed))
        self._report(self.controller.learn, record)
        if self._sinks:
            record = record.without_decision()
        for sink in self._sinks:
            self._report(sink.emit, record)
        for sequence in landed.flight.batch.emitting:
            if sequence.finish is None:
                if sequence.request.streamed:
                    self._outbox.append(sequence.delta())
            elif not sequence.over:
                self._end(sequence, sequence.finish, sequence.error)
        self.scheduler.went_well()
        return self._collect()

    def _report(self, told: Callable[..., None], *news: object) -> None:
        """What the controller or a sink makes of it must not cost a request its answer."""
        try:
            told(*news)
        except Exception:  # noqa: BLE001
            _log.exception("round %d could not be reported to %s; it is left out there", self._number, told)

    def _collect(self) -> list[Delta]:
        """Everything that has not been handed over: also what a round left behind that failed half-way."""
        deltas, self._outbox = self._outbox, []
        return deltas

    def _abort(self, which: Callable[[Seq], bool], finish: FinishReason, error: str | None) -> list[Delta]:
        for sequence in [*self.scheduler.running, *self.scheduler.waiting]:
            if which(sequence):
                report_progress()
                self._end(sequence, finish, error)
                self.scheduler.clear(sequence)
        return self._collect()

    def _end(self, sequence: Seq, finish: FinishReason, error: str | None = None, *, trusted: bool = True) -> None:
        sequence.finish, sequence.error, sequence.over = finish, error, True
        try:
            sequence.read()
            delta = sequence.delta()
            completion = sequence.completion(self._clock())
        except Exception as broken:  # noqa: BLE001 - it must leave, whatever became of its text
            _log.exception("the text of %s is lost", sequence.request.id)
            completion = sequence.without_text(f"{type(broken).__name__}: {broken}", self._clock())
            delta = Delta(sequence.request.id, "", ())
        self._outbox.append(replace(delta, completion=completion))
        self.scheduler.leave(sequence, trusted=trusted)
        for sink in self._sinks:
            self._report(sink.finished, sequence.request, completion)

    def _on_start(self, sequence: Seq) -> None:
        report_progress()
        if not sequence.admitted:
            for sink in self._sinks:
                self._report(sink.started, sequence.request)
        sequence.admit(self._clock())
        self.controller.start(held_row(sequence), sequence.request)
        self.executor.start(sequence)

    def _on_leave(self, row: int) -> None:
        self.executor.leave(row)
        try:
            self.controller.finish(row)
        except Exception:  # noqa: BLE001 - the row is free, whatever its policy makes of that
            _log.exception("the end of row %d could not be told to its policy", row)

    def _numbered(self, task: str | None) -> str | None:
        """The task, if it has a number or gets one."""
        tasks = self.controller.task_names
        if task is None or tasks.add(task) or task == OTHER:
            return task
        if not self._told_full:
            self._told_full = True
            _log.warning(
                "requests have named %d tasks of their own, and no more are told apart: from task %r on, new names "
                "count as %r; name fewer, such as tenants in place of sessions",
                len(tasks.added),
                task,
                OTHER,
            )
        return OTHER

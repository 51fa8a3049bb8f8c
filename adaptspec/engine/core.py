"""The engine without threads: requests in, rounds, text out.

One object on one thread. Models are behind the `Executor`, decisions behind the `Controller`.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch

from adaptspec.arrays import EMPTY_INT, IntArray
from adaptspec.config import EngineConfig
from adaptspec.control.controller import Controller
from adaptspec.control.cost_model import CostModel
from adaptspec.control.policy import BatchSignals
from adaptspec.control.tasks import OTHER
from adaptspec.decision import Decision, Reason
from adaptspec.draft_tree import DraftTree
from adaptspec.engine.executor import CommittedTokens, Executor, LapTimer, LaunchedRound, VerifiedRound
from adaptspec.engine.inputs import InputProcessor
from adaptspec.engine.policy_settings import PolicySettings
from adaptspec.engine.prefix_cache import Mode, scope_of
from adaptspec.engine.scheduler import Batch, Scheduler, held_row
from adaptspec.engine.sequence import Sequence as Seq
from adaptspec.errors import ConfigError, UnknownModelError
from adaptspec.progress import report_progress
from adaptspec.request import Request
from adaptspec.results import Completion, Delta, FinishReason, Timings
from adaptspec.rounds import Branches, RoundRecord, RoundWork, Sink, Timing, has_branches

_log = logging.getLogger(__name__)
LOG_EVERY = 1000  # failed decisions per log line: thousands of rounds can run in a second
READING_SECONDS = 1.0  # maximum seconds of prompt reading in a round in which no row decodes
MIN_PREFILL_SECONDS = 0.02  # per round: users do not notice such gaps, and small passes cost more per token


@dataclass(frozen=True)
class EngineLimits:
    """Limits on rows, on prompt tokens of a round (0: chosen for the device), and on the depth of drafts.

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

    @classmethod
    def from_config(cls, config: EngineConfig) -> EngineLimits:
        """The limits that are configured, and the depth that any policy may ask for."""
        return cls(
            max_rows=config.max_num_seqs,
            prefill_tokens=config.prefill_tokens,
            prefill_seconds=config.prefill_seconds,
            prefix_cache=config.prefix_cache,
        )

    def settled(self, *, cpu: bool) -> EngineLimits:
        """Replace `prefill_tokens` of 0: more tokens use a GPU better, but delay decoding rows."""
        return replace(self, prefill_tokens=self.prefill_tokens or (512 if cpu else 2048))


class InFlightRound(NamedTuple):
    """A launched round with what its record needs. `laps` has timed its parts so far."""

    batch: Batch
    signals: BatchSignals
    decision: Decision
    launched: LaunchedRound
    laps: LapTimer


class FinishedRound(NamedTuple):
    """A round whose tokens are known, but not their text.

    `appended`: positions in `Batch.emitting` of the sequences that gained tokens. `running`: positions [R] of the
    decoding rows whose request was neither aborted during the round nor failed in it (None: all). `lookups`: see
    `Executor.score_lookups`.
    """

    round: InFlightRound
    verified: VerifiedRound
    appended: list[int]
    running: IntArray | None
    lookups: tuple[IntArray, IntArray] | None


class EngineCore:
    """Runs rounds over the queued requests."""

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
        """`settings` are those of every policy of the controller. `timer` returns seconds for measuring costs, `clock`
        for time stamps. `costs` limit the prompt tokens of a round by their time; None: only `limits` do.

        Raises:
            ConfigError: a verification method would be biased by tokens that a drafter of its policy may drop.
        """
        for name, policy in controller.policies.items():
            settings[name].check(name, policy, executor.anticipating)
        self.executor = executor
        self.controller = controller
        self.inputs = inputs
        self.settings = dict(settings)
        self.limits = limits = limits.settled(cpu=True)  # a caller with a GPU has settled them before
        self.scheduler = Scheduler(
            executor.caches,
            limits.max_rows,
            prefill_budget=self._prefill_budget,
            max_depth=limits.max_depth,
            on_start=self._on_start,
            on_leave=self._on_leave,
            clock=clock,
        )
        self._costs = costs
        self._sinks = tuple(sinks)
        self._timer = timer
        self._clock = clock
        self._number = 0
        self._in_flight: InFlightRound | None = None
        self._failed_decisions = 0
        self._outbox: list[Delta] = []
        self._warned_of_tasks = False  # once new task names count as `OTHER`

    @torch.inference_mode()
    def step(self) -> list[Delta]:
        """Run one round and return the deltas of its requests, in no particular order.

        If the executor overlaps rounds, the next one is launched before the text of this one is read.
        """
        in_flight, self._in_flight = self._in_flight or self._launch(), None
        if in_flight is None:
            return self._collect()
        finished = self._finish(in_flight)
        if self.executor.overlaps and not self.scheduler.bisecting:
            self._in_flight = self._launch()
        emitted = self._read_texts(finished)
        self._report_round(self._make_record(finished, emitted))
        self._deliver(in_flight.batch)
        return self._collect()

    @property
    def idle(self) -> bool:
        return self.scheduler.idle and self._in_flight is None

    def check(self, request: Request) -> None:
        """Check whether a request can be served. Touches no state, so any thread may call it.

        Raises:
            RequestError: with the field at fault in `param`.
        """
        self.inputs.check(request)
        self.check_policy(request)

    def check_policy(self, request: Request) -> None:
        """Raise UnknownModelError if the request's policy is not served, or not any more."""
        policy, served = request.speculation.policy, self.controller.policies
        if policy is not None and policy not in served:
            raise UnknownModelError(
                f"there is no policy {policy!r} here; served are: {', '.join(served)}", "adaptspec.policy"
            )

    def add(self, request: Request) -> None:
        """Queue a checked request.

        Its task is detected if that was not done before. New tasks beyond the maximum number count as `OTHER`. The
        policy is assigned here, by the current shares of canaries, and does not change later.
        """
        request = self.inputs.prepared(request)
        task, policy = self._task_or_other(request.speculation.task), self.controller.assigned(request)
        request = replace(request, speculation=replace(request.speculation, task=task, policy=policy))
        sequence = self.inputs.sequence(request, self.settings[policy].method)
        sequence.scope = self.settings[policy].scope(request.key)
        sequence.prefix_scope = scope_of(request, self.limits.prefix_cache)
        self.scheduler.add(sequence)

    def refuse(self, request: Request, error: Exception) -> list[Delta]:
        """End a request that could not be queued."""
        now = self._clock()
        reason = f"{type(error).__name__}: {error}"
        completion = Completion.failed(request.id, len(request.prompt), reason, Timings(now, None, None, now))
        for sink in self._sinks:
            self._report(sink.finished, request, completion)
        return [Delta(request.id, "", (), completion)]

    def abort(self, request_id: str) -> list[Delta]:
        """End a request now. Unknown ids are ignored: the request has already ended."""
        return self._abort(lambda sequence: sequence.request.id == request_id, FinishReason.ABORT, None)

    def abort_all(self, finish: FinishReason, error: str) -> list[Delta]:
        """End every request, including waiting ones."""
        return self._abort(lambda _: True, finish, error)

    def recover(self, error: Exception) -> list[Delta]:
        """Handle a round that failed: end the request that caused it, once it is known (see `FaultBisection`)."""
        for sequence in list(self.scheduler.running):
            report_progress()
            self._read_text(sequence)  # it may have ended without an error
            if sequence.finish is not None:  # it ended in this round, before the failure
                self._end(sequence, sequence.finish, sequence.error, trusted=False)
        self._in_flight, culprit = None, self.scheduler.failed()
        if culprit is not None:
            self._end(culprit, FinishReason.ERROR, f"{type(error).__name__}: {error}")
            self.scheduler.clear(culprit)
        return self._collect()

    def _prefill_budget(self, rows: int, context: int) -> int:
        """Maximum prompt tokens of a round with `rows` decoding rows.

        Reading may take twice the time of the round without it, so that decoding slows down to a third at most. Short
        rounds may read for `MIN_PREFILL_SECONDS`; `prefill_seconds` is the maximum.
        """
        max_tokens = self.limits.prefill_tokens
        if self._costs is None:
            return max_tokens
        seconds = READING_SECONDS
        if rows:
            baseline = self._costs.plain_seconds(rows, float(context))
            seconds = min(self.limits.prefill_seconds, max(2.0 * baseline, MIN_PREFILL_SECONDS))
        return min(max(self._costs.prefill_tokens_within(seconds), 1), max_tokens)

    def _launch(self) -> InFlightRound | None:
        """Launch a round; None if no request can run before texts are read."""
        laps = LapTimer(self._timer)
        batch = self.scheduler.next_batch()
        if not batch.decoding and not batch.chunks:
            return None
        signals = self._signals(batch)
        decision = self._decide(signals)
        laps.lap("decide")
        launched = self.executor.launch(batch, decision)
        laps.lap("draft")
        return InFlightRound(batch, signals, decision, launched, laps)

    def _signals(self, batch: Batch) -> BatchSignals:
        """The policy's view of the decoding rows. Model-free drafters search as deep as the policies may draft."""
        size, num_drafters = len(batch.decoding), len(self.executor.drafters)
        gaps = self.executor.cache_gaps(batch)
        lookups = self.executor.look_up(batch, self.controller.search_depth, self.controller.asked)
        # One array, split into rows: for one decoding row, making an array costs as much as filling it.
        table = np.array(
            [
                [sequence.length for sequence in batch.decoding],
                batch.limits,
                [sequence.emitted for sequence in batch.decoding],
                *gaps,
                *lookups.num_found,
            ],
            dtype=np.int64,
        )
        return BatchSignals(
            rows=batch.rows[:size],
            tasks=EMPTY_INT,
            context=table[0],
            limits=table[1],
            position=table[2],
            cache_gap=table[3 : 3 + num_drafters],
            found=table[3 + num_drafters :],
            prefill_tokens=batch.prefill_tokens,
            stated=lookups.confidence,
        )

    def _decide(self, signals: BatchSignals) -> Decision:
        """The controller's decision. If a policy fails, the round has no drafts."""
        try:
            return self.controller.decide(signals)
        except Exception:  # noqa: BLE001 - rounds without drafts need no decision
            self._failed_decisions += 1
            if self._failed_decisions % LOG_EVERY == 1:
                _log.exception(
                    "the decision for a round has failed, so it has no drafts; failures so far: %d",
                    self._failed_decisions,
                )
            no_drafts = np.zeros(signals.batch_size, dtype=np.int64)
            return Decision(no_drafts, np.full_like(no_drafts, int(Reason.GUARD)), no_drafts)

    def _finish(self, in_flight: InFlightRound) -> FinishedRound:
        """Finish a round: append the accepted tokens and truncate the caches. The next round may be launched then."""
        batch, decision, laps = in_flight.batch, in_flight.decision, in_flight.laps
        aborted = [sequence.finish is not None for sequence in batch.decoding]
        verified = self.executor.finish(in_flight.launched)
        laps.lap("verify")
        tree, result, now = verified.draft.tree, verified.result, self._clock()
        appended: list[int] = []
        committed: list[CommittedTokens] = []
        for i, sequence in enumerate(batch.emitting):
            report_progress()
            if sequence.finish is not None:
                continue  # it has ended, or its scores are not finite
            nodes, length = result.nodes(i), sequence.length
            names = self._proposers(tree, i, nodes) if sequence.request.speculation.provenance else ()
            try:
                sequence.append(result.tokens(tree, i), now, names)
            except Exception as error:  # noqa: BLE001 - it must not affect other requests
                self._fail(sequence, error)
                continue
            appended.append(i)
            if i < len(batch.decoding):
                # The drafter is committed even if all its tokens were cut: its cache may be ahead of the text.
                drafter = int(decision.drafter[i]) if decision.depths[i] else -1
                committed.append(CommittedTokens(sequence, length, nodes, drafter))
        self.executor.commit(committed)
        laps.lap("commit")
        # What a failed row accepted is unknown, and must not be learned from.
        failed = [sequence.finish is FinishReason.ERROR for sequence in batch.decoding]
        all_run = not any(aborted) and not any(failed)
        running = None if all_run else np.flatnonzero(~np.logical_or(aborted, failed))
        # Must precede the next round, in which drafters read the tokens that they are scored on.
        lookups = self.executor.score_lookups(batch, decision, in_flight.signals.context)
        return FinishedRound(in_flight, verified, appended, running, lookups)

    def _read_texts(self, finished: FinishedRound) -> IntArray:
        """Detokenize the round's tokens; returns the tokens emitted [B] by the decoding rows."""
        batch, tree, result = finished.round.batch, finished.verified.draft.tree, finished.verified.result
        emitted = np.zeros(len(batch.decoding), dtype=np.int64)
        for i in finished.appended:
            report_progress()
            sequence = batch.emitting[i]
            gained = self._read_text(sequence)
            if gained is not None and i < len(emitted):
                emitted[i] = gained
                accepted = min(int(result.accepted[i]), gained)
                sequence.count_round(int(tree.depths[i]), accepted, int(tree.counts[i]))
        return emitted

    def _read_text(self, sequence: Seq) -> int | None:
        """Detokenize a sequence's new tokens; returns how many are emitted, None after an error."""
        try:
            return sequence.read_text()
        except Exception as error:  # noqa: BLE001 - it must not affect other requests
            self._fail(sequence, error)
            return None

    def _fail(self, sequence: Seq, error: Exception) -> None:
        """End a request whose tokens or text could not be processed. Called in an exception handler."""
        _log.exception("the tokens or the text of %s could not be processed", sequence.request.id)
        sequence.fail(f"{type(error).__name__}: {error}")

    def _proposers(self, tree: DraftTree, row: int, nodes: Sequence[int]) -> list[str]:
        """Names of the drafters of these nodes."""
        names = self.executor.drafters
        return [names[drafter] for drafter in tree.drafter[tree.row_nodes(row)][nodes].tolist()]

    def _make_record(self, finished: FinishedRound, emitted: IntArray) -> RoundRecord:
        (batch, signals, decision, _, laps), verified, _, running, lookups = finished
        self._number += 1
        size, tree, result = len(emitted), verified.draft.tree, verified.result
        if tree.distribution is not None:  # a record may be kept for long, and distributions take megabytes
            tree = replace(tree, distribution=None)
        if len(tree.chain) > size:  # remove rows whose prompt ended in this round
            tree = tree.take(np.arange(size))
        lookup_drafted, lookup_right = lookups or (None, None)
        seconds = verified.seconds or (laps.seconds("draft"), laps.seconds("verify"))
        record = RoundRecord(
            number=self._number,
            request_ids=tuple(sequence.request.id for sequence in batch.decoding),
            rows=signals.rows,
            depths=decision.depths,
            reasons=decision.reasons,
            drafter=decision.drafter,
            drafted=tree.depths,
            accepted=result.accepted[:size],
            emitted=emitted,
            context=signals.context,
            confidence=tree.on_chain(tree.confidence),
            entropy=tree.on_chain(tree.entropy),
            branches=Branches(tree, result.path[:size]) if has_branches(tree, decision.drafter) else None,
            work=RoundWork(
                size,
                size + len(verified.draft.tree.token),
                float(signals.context.sum()),
                verified.draft.work,
                batch.prefill_tokens,
            ),
            timing=Timing(*seconds, laps.total),
            ended=self._clock(),
            decision=decision,
            tasks=decision.tasks,
            expected=decision.expected,
            shadow=lookup_right,
            shadow_drafted=lookup_drafted,
            stated=signals.stated,
        )
        return record if running is None else record.take(running)

    def _report_round(self, record: RoundRecord) -> None:
        """Report a round to the controller and to the sinks."""
        self._report(self.controller.learn, record)
        if self._sinks:
            record = record.without_decision()
        for sink in self._sinks:
            self._report(sink.emit, record)

    def _deliver(self, batch: Batch) -> None:
        """Collect the deltas of a round's requests, and end the finished ones."""
        for sequence in batch.emitting:
            if sequence.finish is None:
                if sequence.request.streamed:
                    self._outbox.append(sequence.delta())
            elif not sequence.over:
                self._end(sequence, sequence.finish, sequence.error)
        self.scheduler.succeeded()

    def _report(self, receiver: Callable[..., None], *values: object) -> None:
        """Call the controller or a sink. Its failure must not affect requests."""
        try:
            receiver(*values)
        except Exception:  # noqa: BLE001
            _log.exception("round %d could not be reported to %s, which misses it", self._number, receiver)

    def _collect(self) -> list[Delta]:
        """All deltas that were not returned yet, including those of a failed round."""
        deltas, self._outbox = self._outbox, []
        return deltas

    def _abort(self, matches: Callable[[Seq], bool], finish: FinishReason, error: str | None) -> list[Delta]:
        for sequence in [*self.scheduler.running, *self.scheduler.waiting]:
            if matches(sequence):
                report_progress()
                self._end(sequence, finish, error)
                self.scheduler.clear(sequence)
        return self._collect()

    def _end(self, sequence: Seq, finish: FinishReason, error: str | None = None, *, trusted: bool = True) -> None:
        sequence.finish, sequence.error, sequence.over = finish, error, True
        try:
            sequence.read_text()
            delta = sequence.delta()
            completion = sequence.completion(self._clock())
        except Exception as broken:  # noqa: BLE001 - the request must end in any case
            _log.exception("the text of %s is lost", sequence.request.id)
            completion = sequence.without_text(f"{type(broken).__name__}: {broken}", self._clock())
            delta = Delta(sequence.request.id, "", ())
        self._outbox.append(replace(delta, completion=completion))
        for sink in self._sinks:
            self._report(sink.finished, sequence.request, completion)
        self.scheduler.leave(sequence, trusted=trusted)

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
        except Exception:  # noqa: BLE001 - the row is free in any case
            _log.exception("the end of row %d could not be reported to its policy", row)

    def _task_or_other(self, task: str | None) -> str | None:
        """The task if it has a number or gets one, else `OTHER`."""
        tasks = self.controller.task_names
        if task is None or tasks.add(task) or task == OTHER:
            return task
        if not self._warned_of_tasks:
            self._warned_of_tasks = True
            _log.warning(
                "requests have named %d different tasks, which is the maximum: from task %r on, new names count as %r; "
                "use fewer names, such as tenants instead of sessions",
                len(tasks.added),
                task,
                OTHER,
            )
        return OTHER

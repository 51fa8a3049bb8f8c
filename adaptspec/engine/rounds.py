"""The round loop: draft, verify, commit, learn. One object, one thread, all model state.

Knows sequences, the controller and the models through their protocols; it does not know who asked,
who listens, or how a decision is made.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from adaptspec.control.arrays import total
from adaptspec.control.controller import Controller
from adaptspec.control.policy import BatchSignals, Decision
from adaptspec.engine.by_task import ByTask
from adaptspec.engine.isolation import Isolation
from adaptspec.engine.logprobs import score_output, score_prompts
from adaptspec.engine.scheduler import Batch, Scheduler, held_row
from adaptspec.engine.sequence import Sequence as Seq
from adaptspec.engine.shadow_scores import Shadows
from adaptspec.engine.soundness import sound
from adaptspec.engine.speculator import Ask, Speculator
from adaptspec.models.draft import Draft
from adaptspec.models.runner import Packed, Runner
from adaptspec.types import Delta, FinishReason, IntArray, Reason, RoundRecord, Sink
from adaptspec.verification.method import Method, VerifyResult

_log = logging.getLogger(__name__)
COMPLAIN_EVERY = 1000  # rounds; some thousand of them fit into a second
NOT_NUMBERS = "the model's scores for it were not numbers (NaN or infinite)"


class RoundLoop:
    """Runs rounds over whatever the scheduler admits. `method_of` maps a policy's name to methods' indices.

    `timer` gives the seconds that rounds are timed by: costs are learned from nothing else.
    """

    def __init__(
        self,
        target: Runner,
        speculator: Speculator,
        controller: Controller,
        method_of: Mapping[str, ByTask[int]],
        sinks: Sequence[Sink] = (),
        *,
        max_rows: int,
        max_depth: int,
        prefill_tokens: int,
        timer: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._target = target
        self._timer = timer
        self._speculator = speculator
        self._controller = controller
        self._method_of = dict(method_of)
        self._sinks = tuple(sinks)
        self._number = 0
        self._outbox: list[Delta] = []
        self._isolation = Isolation()
        self.scheduler = Scheduler(
            target,
            max_rows,
            prefill_tokens=prefill_tokens,
            max_depth=max_depth,
            on_start=self._on_start,
            on_leave=self._on_leave,
        )

    @torch.inference_mode()
    def step(self) -> list[Delta]:
        """One round: what each request gained, in no particular order."""
        clock = _Clock(self._timer)
        batch = self.scheduler.next_batch()
        ask = self._ask(batch)
        signals = self._signals(batch, ask)
        decision = self._decide(signals)
        clock.lap("decide")
        draft = self._speculator.propose(ask, decision)
        clock.lap("draft")
        checked = sound(self._verify(batch, draft), draft.counts)
        logits = checked.logits
        verdict = checked.verdict(self._speculator.judge(logits, ask, draft))
        for i in checked.broken.tolist():
            batch.emitting[i].fail(NOT_NUMBERS)
        clock.lap("verify")
        scores = self._speculator.temperature_scores(logits, ask, draft, verdict)
        score_output(batch, logits, draft, verdict)
        outcome = self._commit(batch, ask, decision, draft, verdict, context=signals.context)
        clock.lap("commit")
        record = self._record(batch, signals, decision, draft, outcome=outcome, clock=clock)
        self._report(record if scores is None else replace(record, temperature_scores=scores[: len(record.rows)]))
        self._hand_out(batch)
        if self._isolation.group is not None:
            self._clear()
        return self._collect()

    def recover(self, error: Exception) -> list[Delta]:
        """After a round that failed half-way: end the request that made it fail, once it is known which one it is.

        Nothing that was cached can be trusted. Who ran waits at the front of the queue with the tokens it has, and
        reads them again: half of them first, until the culprit has run, and failed, by itself.
        """
        ran = list(self.scheduler.running)
        for sequence in ran:
            if sequence.finish is not None:  # it ended in this very round, before something failed
                self._end(sequence, sequence.finish, sequence.error)
        culprit = self._isolation.failed([sequence for sequence in ran if sequence.finish is None])
        self.scheduler.put_back()
        if not ran and self.scheduler.waiting:
            culprit = self.scheduler.waiting[0]  # it could not even be admitted
        if culprit is not None:
            self._end(culprit, FinishReason.ERROR, f"{type(error).__name__}: {error}")
        self.scheduler.only = self._isolation.group
        return self._collect()

    def verify_by(self, policy: str, methods: ByTask[Method]) -> None:
        """From the next round on, judge the drafts of a policy by these methods."""
        self._method_of[policy] = methods.each(self._speculator.use)

    def abort(
        self, request_id: str, finish: FinishReason = FinishReason.ABORT, error: str | None = None
    ) -> list[Delta]:
        """End a request where it stands; an unknown id is one that has already ended."""
        for sequence in [*self.scheduler.running, *self.scheduler.waiting]:
            if sequence.request.id == request_id:
                self._send_away(sequence, finish, error)
        return self._collect()

    def abort_all(self, finish: FinishReason, error: str) -> list[Delta]:
        """End every request, waiting ones too."""
        for sequence in [*self.scheduler.running, *self.scheduler.waiting]:
            self._send_away(sequence, finish, error)
        return self._collect()

    def _send_away(self, sequence: Seq, finish: FinishReason, error: str | None) -> None:
        self._end(sequence, finish, error)
        self._isolation.gone(sequence)
        self.scheduler.only = self._isolation.group

    def _clear(self) -> None:
        """While a culprit is sought: whoever has run well makes way for the next ones."""
        before = self._isolation.group
        if self._isolation.went_well() and self._isolation.bearable is not None:
            _log.warning("no request fails by itself; at most %d run at once for a while", self._isolation.bearable)
            self.scheduler.bear(self._isolation.bearable)
        after = self._isolation.group
        if after is not before and after is not None:
            self.scheduler.put_back()
        self.scheduler.only = after

    def _decide(self, signals: BatchSignals) -> Decision:
        """The controller's decision. A policy that fails costs its drafts: plain decoding needs no decision."""
        try:
            return self._controller.decide(signals)
        except Exception:  # noqa: BLE001
            if self._number % COMPLAIN_EVERY == 0:
                _log.exception("round %d could not be decided; it runs without drafts", self._number + 1)
            nothing = np.zeros(signals.batch_size, dtype=np.int64)
            return Decision(nothing, nothing + int(Reason.GUARD), nothing)

    def _ask(self, batch: Batch) -> Ask:
        emitting = batch.emitting
        return Ask(
            rows=np.array([s.row for s in emitting], dtype=np.int64),
            tokens=[s.tokens for s in emitting],
            sampling=self._speculator.sampling([s.sampling for s in emitting]),
            methods=np.array([self._method(s) for s in emitting], dtype=np.int64),
        )

    def _signals(self, batch: Batch, ask: Ask) -> BatchSignals:
        decoding = batch.decoding
        context = [len(s.tokens) for s in decoding]
        nothing = [0] * len(decoding)
        drafters = self._speculator.drafters
        lags = [
            [drafter.cache_gap(held_row(s), length) for s, length in zip(decoding, context, strict=True)]
            for drafter in drafters
        ]
        offers = [nothing] * len(drafters)
        deepest = self._controller.deepest_offer
        for which, lookup in self._speculator.lookups.items() if deepest else ():
            offers[which] = [
                lookup.offer(held_row(s), s.tokens, min(limit, deepest))
                for s, limit in zip(decoding, batch.limits, strict=True)
            ]
        # One array cut in rows: at batch 1 making it costs as much as what stands in it.
        table = np.array(
            [nothing, context, batch.limits, [s.emitted for s in decoding], *lags, *offers], dtype=np.int64
        )
        return BatchSignals(
            rows=ask.rows[: len(decoding)],
            tasks=table[0],
            context=table[1],
            limits=table[2],
            position=table[3],
            lag=table[4 : 4 + len(drafters)],
            offered=table[4 + len(drafters) :],
            prefill_tokens=batch.prefill_tokens,
            free_memory=self._target.free_memory,
        )

    def _verify(self, batch: Batch, draft: Draft) -> torch.Tensor:
        """The target's pass over the newest token and the draft of each decoding row, and over prompt chunks."""
        tokens: list[int] = []
        rows, counts, wanted = [], [], []
        for i, sequence in enumerate(batch.decoding):
            count = int(draft.counts[i])
            tokens.append(sequence.tokens[-1])
            tokens.extend(draft.tokens[i, :count].tolist())
            rows.append(sequence.row)
            counts.append(count + 1)
            wanted.append(count + 1)
        for chunk in batch.ordered_chunks:
            tokens.extend(chunk.sequence.tokens[chunk.start : chunk.start + chunk.count])
            rows.append(chunk.sequence.row)
            counts.append(chunk.count)
            wanted.append(chunk.count if chunk.scored else int(chunk.last))
        arrays = [np.array(part, dtype=np.int64) for part in (rows, counts, tokens, wanted)]
        return score_prompts(batch, self._target.forward(Packed(*arrays)))

    def _commit(
        self, batch: Batch, ask: Ask, decision: Decision, draft: Draft, verdict: VerifyResult, *, context: IntArray
    ) -> _Outcome:
        """Append what was accepted and roll the caches back to it. `context` [B]: tokens before."""
        now, size = time.monotonic(), len(batch.decoding)
        emitted = np.zeros(size, dtype=np.int64)
        drafters = self._speculator.drafters
        for i, sequence in enumerate(batch.emitting):
            if sequence.finish is not None:
                continue  # nothing can be drawn for it
            kept, drafted = int(verdict.accepted[i]), int(draft.counts[i])
            length = len(sequence.tokens)
            by = drafters[int(decision.drafter[i])].name if kept else None
            try:
                gained = sequence.commit([*draft.tokens[i, :kept].tolist(), int(verdict.following[i])], now, by)
            except Exception as error:  # noqa: BLE001 - its own text is at fault; the others' is not
                _log.exception("the tokens of %s could not be committed", sequence.request.id)
                sequence.fail(f"{type(error).__name__}: {error}")
                continue
            if i < size:
                emitted[i] = gained
                sequence.count_round(drafted, min(kept, gained))
                # A drafter may have read on though all it drafted was cut: what was asked for tells, not what is left.
                drafter = int(decision.drafter[i]) if decision.depths[i] else None
                self._roll_back(held_row(sequence), length + kept, drafter)
        return _Outcome(verdict.accepted[:size], emitted, self._speculator.shadows(ask, decision, context))

    def _record(
        self,
        batch: Batch,
        signals: BatchSignals,
        decision: Decision,
        draft: Draft,
        *,
        outcome: _Outcome,
        clock: _Clock,
    ) -> RoundRecord:
        self._number += 1
        size, prefill, shadows = len(batch.decoding), batch.prefill_tokens, outcome.shadows
        return RoundRecord(
            number=self._number,
            request_ids=tuple(s.request.id for s in batch.decoding),
            rows=signals.rows,
            depths=decision.depths,
            reasons=decision.reasons,
            drafter=decision.drafter,
            drafted=draft.counts[:size],
            accepted=outcome.accepted,
            emitted=outcome.emitted,
            context=signals.context,
            confidence=draft.confidence[:size],
            entropy=draft.entropy[:size],
            prefill_tokens=prefill,
            draft_steps=draft.steps,
            caught_up=draft.caught_up,
            verify_tokens=total(draft.counts) + size + prefill,
            draft_seconds=clock.seconds("draft"),
            verify_seconds=clock.seconds("verify"),
            total_seconds=clock.total,
            ended=time.monotonic(),
            decision=decision.number,
            tasks=decision.tasks,
            policies=decision.policies,
            provenance=decision.provenance,
            expected=decision.expected,
            shadow=None if shadows is None else shadows.accepted,
            shadow_drafted=None if shadows is None else shadows.drafted,
        )

    def _report(self, record: RoundRecord) -> None:
        """Tell the controller and the sinks. What they make of it must not cost a request its answer."""
        for told in (self._controller.learn, *(sink.emit for sink in self._sinks)):
            try:
                told(record)
            except Exception:  # noqa: BLE001
                _log.exception("round %d could not be reported to %s; it is left out there", record.number, told)

    def _hand_out(self, batch: Batch) -> None:
        for sequence in batch.emitting:
            if sequence.finish is None:
                self._outbox.append(sequence.delta())
            else:
                self._end(sequence, sequence.finish, sequence.error)

    def _collect(self) -> list[Delta]:
        """Everything that has not been handed over: also what a round left behind that failed half-way."""
        deltas, self._outbox = self._outbox, []
        return deltas

    def _roll_back(self, row: int, valid: int, drafter: int | None) -> None:
        self._target.truncate(row, valid)
        if drafter is not None:
            self._speculator.drafters[drafter].commit(row, valid)

    def _end(self, sequence: Seq, finish: FinishReason, error: str | None = None) -> None:
        sequence.finish, sequence.error = finish, error
        policy = self._policy(sequence)
        lossy = self._speculator.lossy(self._method(sequence))
        try:
            delta = sequence.delta()
            completion = sequence.completion(policy, time.monotonic(), lossy=lossy)
        except Exception as broken:  # noqa: BLE001 - it must leave, whatever became of its text
            _log.exception("the text of %s is lost", sequence.request.id)
            completion = sequence.without_text(f"{type(broken).__name__}: {broken}", time.monotonic())
            delta = Delta(sequence.request.id, "", ())
        self._outbox.append(replace(delta, completion=completion))
        self.scheduler.leave(sequence)
        for sink in self._sinks:
            try:
                sink.finished(sequence.request, completion)
            except Exception:  # noqa: BLE001
                _log.exception("the end of %s could not be reported to %s", sequence.request.id, sink)

    def _tell_started(self, sequence: Seq) -> None:
        for sink in self._sinks:
            try:
                sink.started(sequence.request)
            except Exception:  # noqa: BLE001
                _log.exception("the start of %s could not be reported to %s", sequence.request.id, sink)

    def _policy(self, sequence: Seq) -> str:
        return sequence.request.speculation.policy or self._controller.default

    def _method(self, sequence: Seq) -> int:
        return self._method_of[self._policy(sequence)].of(sequence.request.speculation.task)

    def _on_start(self, sequence: Seq) -> None:
        if sequence.timings.admitted is None:
            self._tell_started(sequence)
        sequence.admit(time.monotonic())
        self._controller.start(held_row(sequence), sequence.request)
        if sequence.request.prediction:
            for lookup in self._speculator.lookups.values():
                lookup.expect(held_row(sequence), sequence.request.prediction, sequence.prompt_length)

    def _on_leave(self, row: int) -> None:
        for drafter in self._speculator.drafters:
            drafter.free(row)
        try:
            self._controller.finish(row)
        except Exception:  # noqa: BLE001 - the row is free, whatever its policy makes of that
            _log.exception("the end of row %d could not be told to its policy", row)


@dataclass(frozen=True)
class _Outcome:
    """What a round came to for its decoding rows: drafted tokens kept, tokens emitted.

    `shadows`: what drafters that did not run would have come to.
    """

    accepted: IntArray
    emitted: IntArray
    shadows: Shadows | None


class _Clock:
    """Splits a round's time into named laps, in seconds."""

    def __init__(self, timer: Callable[[], float]) -> None:
        self._timer = timer
        self._start = self._last = timer()
        self._laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        now = self._timer()
        self._laps[name] = now - self._last
        self._last = now

    def seconds(self, name: str) -> float:
        return self._laps[name]

    @property
    def total(self) -> float:
        return self._last - self._start

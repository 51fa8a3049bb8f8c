"""The round loop: draft, verify, commit, learn. One object, one thread, all model state.

Knows sequences, the controller and the models through their protocols; it does not know who asked,
who listens, or how a decision is made.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from adaptspec.control.controller import Controller
from adaptspec.control.policy import BatchSignals, Decision
from adaptspec.engine.scheduler import Batch, Scheduler, held_row
from adaptspec.engine.sequence import Sequence as Seq
from adaptspec.engine.speculator import Ask, Speculator
from adaptspec.models.draft import Draft
from adaptspec.models.runner import Packed, Runner
from adaptspec.types import Delta, FinishReason, RoundRecord, Sink
from adaptspec.verification.method import Verdict


class RoundLoop:
    """Runs rounds over whatever the scheduler admits. `method_of` maps a policy's name to a method's index."""

    def __init__(
        self,
        target: Runner,
        speculator: Speculator,
        controller: Controller,
        method_of: Mapping[str, int],
        sinks: Sequence[Sink] = (),
        *,
        max_rows: int,
        max_depth: int,
        prefill_tokens: int,
    ) -> None:
        self._target = target
        self._speculator = speculator
        self._controller = controller
        self._method_of = method_of
        self._sinks = tuple(sinks)
        self._number = 0
        self._max_depth = max_depth
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
        clock = _Clock()
        batch = self.scheduler.next_batch()
        ask = self._ask(batch)
        decision = self._controller.decide(self._signals(batch))
        clock.lap("decide")
        draft = self._speculator.propose(ask, decision)
        clock.lap("draft")
        logits = self._verify(batch, draft)
        verdict = self._speculator.judge(logits, ask, draft)
        clock.lap("verify")
        record, deltas = self._commit(batch, decision, draft, verdict, clock)
        self._controller.learn(record)
        for sink in self._sinks:
            sink.emit(record)
        return deltas

    def abort(
        self, request_id: str, finish: FinishReason = FinishReason.ABORT, error: str | None = None
    ) -> list[Delta]:
        """End a request where it stands; an unknown id is one that has already ended."""
        for sequence in [*self.scheduler.running, *self.scheduler.waiting]:
            if sequence.request.id == request_id:
                sequence.finish, sequence.error = finish, error
                return [self._end(sequence)]
        return []

    def abort_all(self, finish: FinishReason, error: str) -> list[Delta]:
        """End every request, waiting ones too."""
        everyone = [*self.scheduler.running, *self.scheduler.waiting]
        return [delta for s in everyone for delta in self.abort(s.request.id, finish, error)]

    def _ask(self, batch: Batch) -> Ask:
        emitting = [*batch.decoding, *(chunk.sequence for chunk in batch.chunks if chunk.last)]
        draws = [s.sampling for s in emitting]
        return Ask(
            rows=np.array([s.row for s in emitting], dtype=np.int64),
            tokens=[s.tokens for s in emitting],
            draws=draws,
            sampling=self._speculator.sampling(draws),
            methods=np.array([self._method_of[self._policy(s)] for s in emitting], dtype=np.int64),
        )

    def _signals(self, batch: Batch) -> BatchSignals:
        rows = [s.row for s in batch.decoding]
        context = [len(s.tokens) for s in batch.decoding]
        lag = [
            max(d.lag(row, length) for d in self._speculator.drafters)
            if row is not None and self._speculator.drafters
            else 0
            for row, length in zip(rows, context, strict=True)
        ]
        return BatchSignals(
            rows=np.array(rows, dtype=np.int64),
            tasks=np.zeros(len(rows), dtype=np.int64),
            context=np.array(context, dtype=np.int64),
            limits=np.array([min(s.depth_limit, self._max_depth) for s in batch.decoding], dtype=np.int64),
            lag=np.array(lag, dtype=np.int64),
            prefill_tokens=sum(chunk.count for chunk in batch.chunks),
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
        for chunk in sorted(batch.chunks, key=lambda c: not c.last):
            tokens.extend(chunk.sequence.tokens[chunk.start : chunk.start + chunk.count])
            rows.append(chunk.sequence.row)
            counts.append(chunk.count)
            wanted.append(int(chunk.last))
        arrays = [np.array(part, dtype=np.int64) for part in (rows, counts, tokens, wanted)]
        return self._target.forward(Packed(*arrays))

    def _commit(
        self, batch: Batch, decision: Decision, draft: Draft, verdict: Verdict, clock: _Clock
    ) -> tuple[RoundRecord, list[Delta]]:
        """Append what was accepted, roll the caches back, let finished requests go, and write the record."""
        now = time.monotonic()
        size = len(batch.decoding)
        context = np.array([len(s.tokens) for s in batch.decoding], dtype=np.int64)
        rows = np.array([s.row for s in batch.decoding], dtype=np.int64)
        emitted = np.zeros(size, dtype=np.int64)
        finishing = [chunk.sequence for chunk in batch.chunks if chunk.last]
        for i, sequence in enumerate([*batch.decoding, *finishing]):
            kept = int(verdict.accepted[i])
            length = len(sequence.tokens)
            gained = sequence.commit([*draft.tokens[i, :kept].tolist(), int(verdict.following[i])], now)
            if i < size:
                emitted[i] = gained
                sequence.count_round(int(draft.counts[i]), min(kept, gained))
                self._roll_back(int(rows[i]), length + kept, int(decision.drafter[i]) if draft.counts[i] else None)
        self._number += 1
        clock.lap("commit")
        record = RoundRecord(
            number=self._number,
            request_ids=tuple(s.request.id for s in batch.decoding),
            rows=rows,
            depths=decision.depths,
            reasons=decision.reasons,
            drafter=decision.drafter,
            drafted=draft.counts[:size],
            accepted=verdict.accepted[:size],
            emitted=emitted,
            context=context,
            confidence=draft.confidence[:size],
            entropy=draft.entropy[:size],
            prefill_tokens=sum(chunk.count for chunk in batch.chunks),
            draft_steps=draft.steps,
            caught_up=draft.caught_up,
            verify_tokens=int(draft.counts.sum()) + size + sum(chunk.count for chunk in batch.chunks),
            draft_seconds=clock.seconds("draft"),
            verify_seconds=clock.seconds("verify"),
            total_seconds=clock.total,
        )
        return record, [self._end(s) if s.finish else s.delta() for s in [*batch.decoding, *finishing]]

    def _roll_back(self, row: int, valid: int, drafter: int | None) -> None:
        self._target.truncate(row, valid)
        if drafter is not None:
            self._speculator.drafters[drafter].commit(row, valid)

    def _end(self, sequence: Seq) -> Delta:
        delta = sequence.delta()
        completion = sequence.completion(self._policy(sequence), time.monotonic())
        self.scheduler.leave(sequence)
        for sink in self._sinks:
            sink.finished(sequence.request, completion)
        return Delta(delta.request_id, delta.text, delta.tokens, completion)

    def _policy(self, sequence: Seq) -> str:
        return sequence.request.speculation.policy or self._controller.default

    def _on_start(self, sequence: Seq) -> None:
        sequence.admit(time.monotonic())
        self._controller.start(held_row(sequence), sequence.request)

    def _on_leave(self, row: int) -> None:
        for drafter in self._speculator.drafters:
            drafter.free(row)
        self._controller.finish(row)


class _Clock:
    """Splits a round's wall time into named laps, in seconds."""

    def __init__(self) -> None:
        self._start = self._last = time.perf_counter()
        self._laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self._laps[name] = now - self._last
        self._last = now

    def seconds(self, name: str) -> float:
        return self._laps[name]

    @property
    def total(self) -> float:
        return self._last - self._start

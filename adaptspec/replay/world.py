"""A simulated engine: rounds over the requests of a tape, decided by a real `Controller`, timed by a cost table.

Mirrors the engine's round loop and scheduler: who decodes, what may be drafted, what a round record says. What it does
not mirror: a cache short of room, and several verification methods in one round. Seconds are the cost table's, with
seeded noise if asked for, so a run is the same everywhere.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from adaptspec.control.controller import Controller
from adaptspec.control.policy import BatchSignals, Decision
from adaptspec.control.rows import alike
from adaptspec.drafters import at_hand
from adaptspec.errors import TapeError
from adaptspec.replay.costs import MachineCosts
from adaptspec.replay.drafters import Ask, LookupDraft, ModelDraft, Proposal, SimulatedDrafter
from adaptspec.replay.streams import Stream
from adaptspec.replay.tape import Tape
from adaptspec.types import IntArray, Request, RoundRecord, SpeculationParams


@dataclass(frozen=True)
class WorldSettings:
    """How the simulated engine is set up; defaults are the engine's.

    `prefill_tokens` of prompt are read per round; 0: prompts have been read when a request starts, and its first token
    is there. `noise` is the sigma of log-normal factors on each part of a round. `tells_tasks`: requests name
    their task. Outcomes of rounds are told `lag` rounds late, as by engines that draft the next round meanwhile.
    """

    drafters: tuple[str, ...] = at_hand(draft=True)
    max_depth: int = 64
    catch_up_tokens: int = 512
    prefill_tokens: int = 0
    noise: float = 0.0
    seed: int = 0
    tells_tasks: bool = True
    lag: int = 0


def drafters_of(tape: Tape, costs: MachineCosts, settings: WorldSettings) -> tuple[str, ...]:
    """The drafters of a world: those wanted that the tape has recorded and the costs know."""
    return tuple(name for name in settings.drafters if name in tape.views and name in costs.drafters)


def started(name: str) -> int:
    """Which of a stream's requests, in order, goes by this name in round records."""
    return int(name.rpartition("#")[2]) - 1


def _name(request: str, number: int) -> str:
    """A request may come several times."""
    return f"{request}#{number}"


class World:
    """Serves a stream of requests. Call `round` until `over`; `tokens` and `seconds` add up what it delivered."""

    def __init__(
        self,
        stream: Stream,
        costs: MachineCosts,
        controller: Controller,
        settings: WorldSettings = WorldSettings(),
        pace: Callable[[int], float] | None = None,
    ) -> None:
        """`pace(round)` multiplies that round's time: a machine's bad moments.

        Raises:
            TapeError: neither tape nor costs know any of the drafters.
        """
        self._tape = tape = stream.tape
        self._costs = costs
        self._controller = controller
        self._settings = settings
        self._pace = pace
        self.drafters = drafters_of(tape, costs, settings)
        if not self.drafters:
            raise TapeError(
                f"the tape knows {', '.join(tape.drafters) or 'no drafter'}, the cost table "
                f"{', '.join(costs.drafters) or 'none'}; they need one in common with {', '.join(settings.drafters)}"
            )
        rows = stream.most_rows
        self._simulated = [self._drafter(name, rows) for name in self.drafters]
        self._lookups = [i for i, one in enumerate(self._simulated) if isinstance(one, LookupDraft)]
        self._stream = stream
        self._waiting = deque(stream.order)
        self._untold: deque[RoundRecord] = deque()
        self._free_rows = list(range(rows - 1, -1, -1))
        self._reading: deque[int] = deque()  # rows whose prompt is being read, first come first served
        self._running: IntArray = np.zeros(0, dtype=np.int64)  # rows that decode, in order of arrival
        self._request: IntArray = np.zeros(rows, dtype=np.int64)
        self._emitted: IntArray = np.zeros(rows, dtype=np.int64)
        self._unread: IntArray = np.zeros(rows, dtype=np.int64)
        self._names = [""] * rows
        self._running_names: tuple[str, ...] = ()
        self._noise = np.random.default_rng(settings.seed)
        self.tokens, self.seconds, self.rounds, self._started = 0, 0.0, 0, 0
        self._admit()

    @property
    def over(self) -> bool:
        """Nothing waits, and fewer run than the stream asks for: what is left would say little of a policy."""
        running = len(self._running) + len(self._reading)
        return not self._waiting and (not running or running < self._stream.rows_at(self._started))

    def round(self) -> RoundRecord:
        """Decide, draft, verify, commit, learn; then let the next requests in."""
        rows = self._running
        request, emitted = self._request[rows], self._emitted[rows]
        context = self._tape.prompt_tokens[request] + emitted
        at = self._tape.offsets[request] + emitted
        chunks = self._chunks()
        prefill = sum(chunks.values())
        decision = self._controller.decide(self._signals(rows, request, context, at, prefill))
        draft = self._propose(decision, context, request, at)
        accepted = self._accepted(decision, draft.counts, at)
        gained = np.minimum(accepted + 1, self._tape.lengths[request] - emitted)
        record = self._record(decision, draft, accepted, gained, context)
        self._emitted[rows] += gained
        self._untold.append(record)
        if len(self._untold) > self._settings.lag:
            self._controller.learn(self._untold.popleft())
        self.rounds += 1
        self.tokens += int(gained.sum())
        self.seconds += record.total_seconds
        self._roll_back(decision, draft, context + accepted)
        self._leave(rows[emitted + gained >= self._tape.lengths[request]])
        self._read(chunks)
        self._admit()
        return record

    def _signals(
        self, rows: IntArray, request: IntArray, context: IntArray, at: IntArray, prefill: int
    ) -> BatchSignals:
        emitted = self._emitted[rows]
        lag = np.zeros((len(self._simulated), len(rows)), dtype=np.int64)
        for which, drafter in enumerate(self._simulated):
            own = drafter.lag(rows, context)
            if own is not None:
                lag[which] = own
        room = np.minimum(self._tape.max_tokens[request] - emitted - 1, self._settings.max_depth)
        offered = np.zeros_like(lag)
        deepest = self._controller.search_depth
        if deepest:
            most = np.clip(room, 0, deepest)
            for which in self._lookups:
                offered[which] = np.minimum(self._simulated[which].view.reach[at], most)
        nothing = np.zeros(len(rows), dtype=np.int64)
        return BatchSignals(rows, nothing, context, room, lag, offered, emitted, prefill)

    def _propose(self, decision: Decision, context: IntArray, request: IntArray, at: IntArray) -> Proposal:
        depths, size = decision.depths, len(self._running)
        if not depths.any():
            empty = np.zeros((size, 0))
            return Proposal(np.zeros(size, dtype=np.int64), empty, empty, 0, 0, 0.0)
        first, last = self._tape.offsets[request], self._tape.offsets[request + 1] - 1
        used = sorted(set(decision.drafter[depths > 0].tolist()))
        parts = []
        for which in used:
            mine = depths if len(used) == 1 else np.where(decision.drafter == which, depths, 0)
            asked = Ask(self._running, mine, context, at, first, last, decision.stop)
            parts.append(self._simulated[which].propose(asked))
        return parts[0] if len(parts) == 1 else _merged(parts)

    def _accepted(self, decision: Decision, counts: IntArray, at: IntArray) -> IntArray:
        first = int(decision.drafter[0]) if len(at) else 0
        if alike(decision.drafter, first):
            return np.minimum(self._simulated[first].view.run[at], counts)
        runs = np.stack([drafter.view.run[at] for drafter in self._simulated])
        return np.asarray(np.minimum(runs[decision.drafter, np.arange(len(at))], counts))

    def _roll_back(self, decision: Decision, draft: Proposal, valid: IntArray) -> None:
        """Roll the drafters' caches back to what was kept."""
        drafted = draft.counts > 0
        if not drafted.any():
            return
        for which, drafter in enumerate(self._simulated):
            mine = drafted & (decision.drafter == which)
            drafter.commit(self._running[mine], valid[mine])

    def _shadows(self, decision: Decision, at: IntArray, gained: IntArray) -> tuple[IntArray | None, IntArray | None]:
        """Accepted and drafted: a lookup can be scored against what the round emitted where it did not draft itself."""
        watched = [which for which in self._lookups if which in decision.watched]
        if not watched or not len(at):
            return None, None
        accepted, drafted = (np.full((len(self._simulated), len(at)), -1, dtype=np.int64) for _ in range(2))
        for which in watched:
            idle, view = (decision.drafter != which) | (decision.depths == 0), self._simulated[which].view
            accepted[which] = np.where(idle, np.minimum(view.run[at], gained), -1)
            drafted[which] = np.where(idle, np.minimum(view.reach[at], gained), -1)
        return accepted, drafted

    def _record(
        self, decision: Decision, draft: Proposal, accepted: IntArray, gained: IntArray, context: IntArray
    ) -> RoundRecord:
        prefill = sum(self._chunks().values())
        tokens = len(context) + int(draft.counts.sum()) + prefill
        drafting, verifying, beside = self._seconds(draft, tokens, context)
        at = self._tape.offsets[self._request[self._running]] + self._emitted[self._running]
        shadow, shadow_drafted = self._shadows(decision, at, gained)
        return RoundRecord(
            number=self.rounds + 1,
            request_ids=self._running_names,
            rows=self._running,
            depths=decision.depths,
            reasons=decision.reasons,
            drafter=decision.drafter,
            drafted=draft.counts,
            accepted=accepted,
            emitted=gained,
            context=context,
            confidence=draft.confidence,
            entropy=draft.entropy,
            prefill_tokens=prefill,
            draft_steps=draft.steps,
            caught_up=draft.caught_up,
            verify_tokens=tokens,
            draft_seconds=drafting,
            verify_seconds=verifying,
            total_seconds=drafting + verifying + beside,
            decision=decision.number,
            tasks=decision.tasks,
            policies=decision.policies,
            provenance=decision.provenance,
            expected=decision.expected,
            shadow=shadow,
            shadow_drafted=shadow_drafted,
        )

    def _seconds(self, draft: Proposal, tokens: int, context: IntArray) -> tuple[float, float, float]:
        """Drafting, verify, and the rest of the round."""
        costs = self._costs
        cached = float(context.sum()) if costs.per_cached_token else 0.0
        drafting, verifying, beside = draft.seconds, costs.verify_seconds(len(context), tokens, cached), costs.overhead
        if self._settings.noise:
            jitter = np.exp(self._noise.normal(0.0, self._settings.noise, 3)).tolist()
            drafting, verifying, beside = drafting * jitter[0], verifying * jitter[1], beside * jitter[2]
        factor = 1.0 if self._pace is None else self._pace(self.rounds)
        return drafting * factor, verifying * factor, beside * factor

    def _chunks(self) -> dict[int, int]:
        """Prompt tokens to be read this round, by row."""
        budget, chunks = self._settings.prefill_tokens, {}
        for row in self._reading:
            if budget <= 0:
                break
            chunks[row] = min(int(self._unread[row]), budget)
            budget -= chunks[row]
        return chunks

    def _read(self, chunks: dict[int, int]) -> None:
        """Prompts were read on; those that end yield the first token."""
        for row, count in chunks.items():
            self._unread[row] -= count
            if not self._unread[row]:
                self._reading.remove(row)
                self._begin(row)
                self.tokens += 1

    def _begin(self, row: int) -> None:
        self._emitted[row] = 1
        self._running = np.append(self._running, row)
        self._running_names = tuple(self._names[r] for r in self._running.tolist())
        if self._tape.lengths[self._request[row]] <= 1:
            self._leave(self._running[-1:])

    def _admit(self) -> None:
        while self._waiting and self._free_rows:
            if len(self._running) + len(self._reading) >= self._stream.rows_at(self._started):
                return
            request, row = self._waiting.popleft(), self._free_rows.pop()
            self._started += 1
            self._request[row], self._emitted[row] = request, 0
            self._names[row] = _name(self._tape.ids[request], self._started)
            task = (self._tape.tasks[request] or None) if self._settings.tells_tasks else None
            self._controller.start(row, Request(self._names[row], (0,), speculation=SpeculationParams(task=task)))
            if self._settings.prefill_tokens:
                self._unread[row] = self._tape.prompt_tokens[request]
                self._reading.append(row)
            else:
                self._begin(row)

    def _leave(self, rows: IntArray) -> None:
        if not len(rows):
            return
        for row in rows.tolist():
            for drafter in self._simulated:
                drafter.free(row)
            self._controller.finish(row)
            self._free_rows.append(row)
        self._running = self._running[~np.isin(self._running, rows)]
        self._running_names = tuple(self._names[r] for r in self._running.tolist())

    def _drafter(self, name: str, rows: int) -> SimulatedDrafter:
        view = self._tape.views[name]
        if self._costs.drafters[name].step is None:
            return LookupDraft(name, view, self._costs)
        return ModelDraft(name, view, self._costs, rows, self._settings.catch_up_tokens)


def _merged(parts: list[Proposal]) -> Proposal:
    """Parts that draft for different rows, as one."""
    deepest = max(part.confidence.shape[1] for part in parts)
    size = len(parts[0].counts)
    confidence, entropy = np.full((size, deepest), np.nan), np.full((size, deepest), np.nan)
    for part in parts:
        mine, width = part.counts > 0, part.confidence.shape[1]
        confidence[mine, :width], entropy[mine, :width] = part.confidence[mine], part.entropy[mine]
    return Proposal(
        np.sum([part.counts for part in parts], axis=0),
        confidence,
        entropy,
        sum(part.steps for part in parts),
        sum(part.caught_up for part in parts),
        sum(part.seconds for part in parts),
    )

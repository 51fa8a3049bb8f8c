"""A control plane for an engine that asks it once per step how deep to draft, and tells it what became of that.

It knows no engine::

    pilot = Pilot(settings, host, max_rows=256, model_len=4096, models={"target": "m", "draft": "d"})
    pilot.enter("a", SpeculationParams(max_depth=5), prompt_tokens=12, max_tokens=100)
    plan = pilot.decide(["a"])               # once per step, also where nobody decodes
    ...                                      # the step runs
    pilot.learn(plan, ["a"], [3], [2], [3])  # what that step verified and emitted
    pilot.leave("a", "stop")

All on one thread. Nothing but the constructor raises.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count

import numpy as np

from adaptspec.arrays import IntArray
from adaptspec.control.algorithms.algorithm import lowered
from adaptspec.control.controller import Controller
from adaptspec.control.host import Host
from adaptspec.control.learned_state import PolicyState
from adaptspec.control.policy import BatchSignals
from adaptspec.decision import Decision, Reason
from adaptspec.hosts.desk import Desk
from adaptspec.hosts.guests import UNBOUND, Guests, StepOutcome
from adaptspec.hosts.rounds import (
    Chosen,
    Finished,
    Plan,
    TimedStep,
    Waiting,
    costs_of_steps,
    of_one_mind,
    round_of,
    work_of_step,
)
from adaptspec.hosts.settings import IGNORED, NOT_SERVED, PilotSettings
from adaptspec.hosts.shared_state import SharedState
from adaptspec.hosts.skipping import Skipping
from adaptspec.request import Request, SamplingParams, SpeculationParams
from adaptspec.rounds import RoundWork, Timing
from adaptspec.telemetry.metric_families import host_families

_log = logging.getLogger(__name__)
# So many steps are timed first, at these shares of the deepest draft in turn, so that the cost model can price their
# parts. Then the policies decide.
_MEASURING, _CYCLE = 24, (1.0, 0.0, 0.5, 0.2)
_RAGGED_STEPS = 64  # once in so many steps rows are cut although that does not pay by now
# Failures of a kind in a row after which the fence lets go, and calls between two lines of the log about them.
_MOST_FAILURES, _QUIET = 100, 1000
_MOST_WAITING = 64  # steps whose end is not known, or that are yet to be learned from; an engine has a handful
_MOST_TOKENS = 2**31


class Pilot:
    """Policies for an engine, behind a fence: what fails in here costs a decision, and never a request.

    Where nothing can be decided, the plan is what the engine would do by itself: all rows at `host.deepest`.
    """

    def __init__(
        self,
        settings: PilotSettings,
        host: Host,
        max_rows: int,
        *,
        model_len: int = _MOST_TOKENS,
        models: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.perf_counter,
        controller: type[Controller] = Controller,
        state: type[SharedState] = SharedState,
    ) -> None:
        """`model_len`: tokens that a context has room for. `models` by role, for journals and learned state. `clock`:
        seconds; a step takes from the last one's end, or from when it was decided if nobody was here, to its own.
        `controller` makes the decisions, `state` shares what was learned.

        Raises ConfigError, StateError, JournalError: a policy or a setting cannot be used here; says why, and where.
        """
        self.settings, self.host = settings, host
        self.errors = self.opted_out = 0  # what the fence kept in; requests that want no drafts
        self.ignored = Counter(dict.fromkeys(IGNORED, 0))  # wishes, by why they are
        self.detached = False  # after too many in a row it has let go for good
        self._failures, self._in_a_row = Counter[str](), Counter[str]()  # by kind
        self._clock = clock
        self._number, self._rounds = 0, count(1)
        self._guests = Guests(max_rows, model_len=model_len, behind=1 + host.lag)
        self._desk = Desk(settings, host, max_rows, models or {}, controller, state=state)
        self._watchers = self._desk.watchers
        if self._watchers is not None:
            own = partial(host_families, self.ignored)
            self._watchers.metrics.watch(lambda: own(self.opted_out, self.errors, detached=self.detached))
        self.notes: Sequence[str] = self._desk.notes  # what of the policies does not hold here, a line each
        self._reads_along = not settings.skip_draft
        self._costs = costs_of_steps(reads_along=self._reads_along)
        self._controller = self._desk.policies.controller(self._costs, clock)
        self._measured = False
        self._timed: list[tuple[RoundWork, float]] = []  # until then: steps and their seconds
        self._early: list[TimedStep] = []  # those of them whose decision is known
        self._steps: dict[int, Waiting] = {}
        self._last: Waiting | None = None
        self._finished: list[Finished] = []  # steps that are yet to be learned from
        self._reported = 0  # steps
        self._next_ragged = 0  # the step from which on rows are cut once although that does not pay by now
        self._ended = math.nan  # the last step, on the clock; NaN: nobody was here since
        self._skipping = Skipping(allowed=settings.skip_draft)
        self._rowless: set[str] = set()  # who found no row, and has no drafts

    def enter(
        self,
        request_id: str,
        wishes: SpeculationParams = SpeculationParams(),
        *,
        prompt_tokens: int = 0,
        max_tokens: int = _MOST_TOKENS,
        temperature: float = 0.0,
        waited: float = 0.0,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """A request is here; entering again, as after a preemption, changes nothing. It has `waited` so many seconds;
        `headers` are those of the trace that it belongs to.

        Where a policy of its `wishes` is not served, the default decides.
        """
        if request_id in self._guests.rows:
            return
        with self.fence("enter"):
            self._learn_finished()  # while rows are those of the requests that ran
            self._rowless.add(request_id)  # until all has gone well: then nobody knows what it wants
            # Nobody here reads the prompt, which may be long; how long it is will do.
            sampling = SamplingParams(max_tokens, temperature if 0.0 <= temperature <= 100.0 else 100.0)
            request = Request(request_id, range(prompt_tokens), sampling, wishes)
            if not self.detached:
                if not self._desk.policies.can_decide(wishes.policy):
                    self.ignore(NOT_SERVED, f"policy {wishes.policy!r:.100} is not served here")
                    wishes = replace(wishes, policy=None)
                mine = replace(wishes, policy=self._controller.assigned(replace(request, speculation=wishes)))
                request = replace(request, speculation=mine)
            row = self._guests.enter(request, waited)
            if row is None:
                return
            self._rowless.remove(request_id)
            if self._watchers is not None:
                self._watchers.started(request, headers or {})
            self.opted_out += wishes.max_depth == 0
            if not self.detached:
                self._controller.start(row, request)
                if wishes.max_depth != 0 and not self._skipping.keeps(self._number):
                    self._guests.ceilings[row] = 0

    def ignore(self, reason: str, said: str) -> None:
        """A wish that is not met, for one of the reasons `IGNORED`: it is counted, and said now and then."""
        if self.ignored[reason] % _QUIET == 0:
            _log.warning("%.300s: it is ignored", said)
        self.ignored[reason] += 1

    def leave(self, request_id: str, finish: str = "stop") -> None:
        """It has ended: after `learn` of its last step. `finish`: stop, length, abort or error. Strangers are fine."""
        with self.fence("leave"):
            self._rowless.discard(request_id)
            self._learn_finished()
            gone = self._guests.leave(request_id)
            if gone is not None:
                row, request = gone
                if not self.detached:
                    self._controller.finish(row)
                if self._watchers is not None:
                    stats, timings = self._guests.stats(row, request), self._guests.timings(row)
                    self._watchers.finished(request, int(self._guests.written[row]), finish, stats, timings)
            if not self._guests.rows:
                self._ended = math.nan

    def decide(self, ids: Sequence[str], prefill_tokens: int = 0, *, room: bool = True) -> Plan:
        """How deep the coming drafts go. `ids` are the requests that will have drafts: in an engine that drafts ahead
        those that this step brings to their end, prompts that it completes among them. `prefill_tokens`: tokens of the
        step that are no drafts and no newest tokens of these requests. Without `room` no row can draft,
        whatever is decided.
        """
        self._number += 1
        if self.detached:
            return self.stock(ids)
        step: Waiting | None = None
        with self.fence("decide"):
            begun = self._clock()
            if self._ended != self._ended and (ids or prefill_tokens):
                self._ended = begun
            if self._desk.waits:
                self._learn_finished()
                self._desk.exchange(self._controller, self._costs)
            step = self._decided(ids, prefill_tokens, room=room)
        self._last = step
        if step is None:
            return self.stock(ids)
        if len(self._steps) >= _MOST_WAITING:
            self._steps.pop(next(iter(self._steps)))
        self._steps[self._number] = step
        return step.plan

    def learn(
        self, plan: Plan, ids: Sequence[str], drafted: Sequence[int], accepted: Sequence[int], emitted: Sequence[int]
    ) -> None:
        """The step of a plan has ended. Of each request that got tokens: how many drafted tokens were verified, how
        many of them kept, and how many tokens it got. In the order of steps; the outcome of a step may never come.

        Where drafts are drawn ahead, what was verified are those of the plan before.
        """
        with self.fence("report"):
            now = self._clock()
            seconds, self._ended = now - self._ended, now if self._guests.rows else math.nan  # idle time is no step's
            step = self._steps.pop(plan.number, None)
            if not ids:
                return
            of = step and (step.before if self.host.ahead else step)
            if of is not None:
                of.before = None  # else every step would be there for ever
            counts = np.array((drafted, accepted, emitted), dtype=np.int64)
            self._finished.append(Finished(step, of, list(ids), counts, seconds, time.monotonic()))
            self._reported += 1
        if not self._measured or self.detached or len(self._finished) >= _MOST_WAITING:
            self._learn_finished()

    def look(self) -> None:
        """Read policy files that have changed and exchange learned state now. A thread does it every second."""
        self._desk.work()

    def learned(self) -> dict[str, PolicyState]:
        """Copies of what policies have learned, by name."""
        self._learn_finished()
        return self._desk.policies.learned(self._controller)

    def close(self) -> None:
        """Save what was learned, and end the journal."""
        with self.fence("close"):
            self._learn_finished()
            if self._watchers is not None:
                self._watchers.begin(self._controller, self._costs)
        self._desk.close(self._controller)

    @contextmanager
    def fence(self, what: str) -> Iterator[None]:
        """What fails inside is counted and said now and then; where it always does, AdaptSpec lets go."""
        try:
            yield
            self._in_a_row[what] = 0
        except Exception:  # noqa: BLE001 - the fence
            self.errors += 1
            self._failures[what] += 1
            self._in_a_row[what] += 1
            if self._failures[what] % _QUIET == 1:
                _log.exception("%s failed inside AdaptSpec; %s does as it would by itself", what, self.host.name)
            if self._in_a_row[what] >= _MOST_FAILURES and not self.detached:
                self.detached = True
                _log.exception("%s failed %d times in a row: AdaptSpec decides nothing any more", what, _MOST_FAILURES)

    # --- deciding -----------------------------------------------------------------------------------------------

    def stock(self, ids: Sequence[str]) -> Plan:
        """What the host does by itself, but for requests that asked for less, and those that nothing is known of."""
        self._number, self._last = self._number + 1, None
        return Plan(self._number, most := self.host.deepest, {name: self._guests.most(name, most) for name in ids})

    def _decided(self, ids: Sequence[str], prefill: int, *, room: bool) -> Waiting:
        last = self._last
        if last is not None and self._repeats(last, ids, prefill, room=room):
            chosen, plan = last.chosen, Plan(self._number, last.plan.depth, last.plan.depths)
        else:
            self._learn_finished()
            plan, chosen = self._chosen(ids, prefill, room=room)
        plan.skip = self._skips(plan.depth, chosen.rows)
        return Waiting(plan, chosen, prefill, self._draft_steps(plan), last)

    def _repeats(self, last: Waiting, ids: Sequence[str], prefill: int, *, room: bool) -> bool:
        """Whether a step goes as the last one did: by the same decision, for the same requests."""
        chosen = last.chosen
        most = (self._reported - chosen.reported) * (1 + self.host.deepest)  # tokens that a row has got since
        return (
            chosen.decision is not None
            and chosen.changes == self._guests.changes
            and most <= chosen.tokens_left
            and chosen.room == room
            and (last.prefill > 0) == (prefill > 0)
            and chosen.ids == ids
            and self._controller.repeat()
        )

    def _chosen(self, ids: Sequence[str], prefill: int, *, room: bool) -> tuple[Plan, Chosen]:
        guests, asked = self._guests, ids
        ids, rows = guests.find(asked)
        if len(ids) < len(asked):
            for name in asked:
                if name not in self._rowless:
                    self.enter(name)
            ids, rows = guests.find(asked)  # of more requests than rows, those without a row do not draft
        size = len(ids)
        limits = guests.ceilings[rows] * room
        decision = None
        if not size:
            depths = limits
        elif not self._measured:
            share = _CYCLE[len(self._timed) % len(_CYCLE)]
            depths = np.minimum(limits, lowered(math.ceil(share * self.host.deepest), self.host.depths))
            decision = Decision(depths, np.full(size, int(Reason.EXPLORE)), np.zeros(size, dtype=np.int64))
        else:
            zeros = np.zeros(size, dtype=np.int64)
            none = zeros[None]
            context, written = guests.context(rows), guests.written[rows]
            decision = self._controller.decide(BatchSignals(rows, zeros, context, limits, none, none, written, prefill))
            depths = np.maximum(np.minimum(decision.depths, limits), 0)
        left = guests.left(rows)
        depth, depths, repeatable = self._depths(depths, limits, left, decision)
        tokens_left = int(left.min(initial=UNBOUND)) - depth if repeatable else -1
        plan = Plan(self._number, depth, dict(zip(ids, depths.tolist(), strict=True)))
        if len(ids) < len(asked):
            plan.depths.update(dict.fromkeys(set(asked).difference(ids), 0))
        serials = guests.serials[rows]
        return plan, Chosen(
            list(ids), rows, serials, depths, decision, room, guests.changes, tokens_left, self._reported
        )

    def _depths(
        self, depths: IntArray, limits: IntArray, left: IntArray, decision: Decision | None
    ) -> tuple[int, IntArray, bool]:
        """One depth for the batch, the deepest of its rows'; what each row verifies of it [B]; and whether the next
        step may do the same.

        `depths` are those decided, `limits` how deep each row may draft, `left` the tokens that it may still write.
        """
        host, size = self.host, len(depths)
        if not host.requests and size:
            depths = np.full(size, np.sort(depths)[size // 2])
        cut = np.minimum(depths, left)  # who is about to end needs no more
        depth = lowered(int(cut.max(initial=0)), host.depths)
        depths = np.minimum(cut, depth)
        packed, most = size + sum(depths.tolist()), size + depth * size
        if packed == most or decision is None or not of_one_mind(decision) or (limits < depth).any():
            return depth, depths, True
        if self._reported >= self._next_ragged:
            self._next_ragged = self._reported + _RAGGED_STEPS
            return depth, depths, False
        return depth, depths if self._is_cutting_worth(size, packed, most) else np.full(size, depth), True

    def _skips(self, depth: int, rows: IntArray) -> bool:
        """Whether the draft is left out of a step of these rows: none of the requests may draft, now or later."""
        if not self.settings.skip_draft or not len(rows):
            return False
        guests = self._guests
        if self._skipping.falls_asleep(self._number, drafts=depth > 0, able=bool(guests.ceilings[rows].any())):
            guests.forbid_drafts()  # also of those whose prompts are read in the step
        return not depth and not guests.ceilings[list(guests.rows.values())].any()

    def _is_cutting_worth(self, rows: int, tokens: int, all_tokens: int) -> bool:
        """Whether a ragged step of `tokens` packed tokens takes less than one in which all rows verify alike.

        Ragged steps took a tenth longer on a CPU, and on a device they leave an engine's full graphs. They are tried
        now and then all the same, or their price could never fall.
        """
        costs = self._costs
        saved = costs.verify_seconds(rows, all_tokens) - costs.verify_seconds(rows, tokens)
        return saved > costs.ragged_seconds

    def _draft_steps(self, plan: Plan) -> int:
        """Passes of the draft in a step, beyond those that a plain one is taken to have."""
        if self._reads_along:
            return max(plan.depth - 1, 0)
        return max(plan.depth, int(not plan.skip))

    # --- learning -----------------------------------------------------------------------------------------------

    def _learn_finished(self) -> None:
        """Learn from the steps that have ended since the last time, each within a fence of its own."""
        finished, self._finished = self._finished, []
        for step in finished:
            with self.fence("learn"):
                self._learn(step)

    def _learn(self, done: Finished) -> None:
        guests, step = self._guests, done.step
        rows = None
        if step is not None and step.chosen.changes == guests.changes and step.chosen.ids == done.ids:
            rows = step.chosen.rows
        outcome = StepOutcome.of(guests, done.ids, done.counts, rows)
        try:
            if step is not None and len(outcome.rows) and not self.detached and 0.0 < done.seconds < math.inf:
                self._learn_step(step, done, outcome)
        finally:
            guests.written[outcome.rows] += outcome.emitted
            if self._watchers is not None:
                guests.count(outcome.rows, outcome.drafted, outcome.accepted, done.ended)

    def _learn_step(self, step: Waiting, done: Finished, outcome: StepOutcome) -> None:
        context = self._guests.context(outcome.rows)
        work = work_of_step(step, outcome, context)
        if self._measured:
            self._costs.observe(work, Timing(math.nan, math.nan, done.seconds))
        else:
            self._timed.append((work, done.seconds))
        if done.of is not None:
            serials = step.chosen.serials if outcome.rows is step.chosen.rows else self._guests.serials[outcome.rows]
            timed = TimedStep(done.of, outcome, serials, context, work, done.seconds, done.ended)
            if self._measured:
                self._teach(timed)
            else:
                self._early.append(timed)
        if not self._measured and len(self._timed) >= _MEASURING:
            self._begin()

    def _teach(self, step: TimedStep, *, watched: bool = True) -> None:
        record = round_of(step, next(self._rounds), self._costs, reads_along=self._reads_along)
        if record is not None:
            self._controller.learn(record)
            if watched and self._watchers is not None:
                self._watchers.emit(record.without_decision())

    def _begin(self) -> None:
        """What steps take is known well enough: from the next one on policies decide."""
        self._measured = True
        self._costs = costs_of_steps(self._timed, reads_along=self._reads_along)
        self._timed.clear()
        self._controller = self._desk.begin(self._costs, self._clock)
        early_steps, self._early = self._early, []
        for early in early_steps:
            with self.fence("learn"):
                self._teach(early, watched=False)  # their requests have gone on since
        for name, row in self._guests.rows.items():
            self._controller.start(row, self._guests.requests[name])

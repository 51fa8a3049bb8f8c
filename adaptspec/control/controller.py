"""The one place per round where a decision is made. All on the engine thread::

    controller = Controller({"goodput": policy}, "goodput", drafters=("draft-model", "ngram"), max_rows=16, cost=cost)
    controller.start(row, request)          # the request begins decoding in `row`
    decision = controller.decide(signals)   # once per round, also with no decoding rows
    ...                                     # draft, verify, commit
    controller.finish(row)                  # before or after the learn of its last round
    controller.learn(record)                # once per round, with its decision; corrects the cost model too

The tasks of rows are those of their requests at `start`. `Decision.drafter` indexes the engine's drafters. Where
deciding takes much of a round's time, by a `timer`, decisions are reused (see `DecisionCache`). Policies then learn
from several rounds together, and from each round once. Starts and ends of requests are passed to them in their order
among these rounds, a start before the request's first new decision.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from adaptspec.arrays import EMPTY_INT, FloatArray, IntArray
from adaptspec.control.cost_model import CostModel
from adaptspec.control.decision_cache import UNDECIDED, DecisionCache, RoundRows
from adaptspec.control.policy import BatchSignals, Policy
from adaptspec.control.rollout import LIVE, Rollout
from adaptspec.control.routing import Route, Router
from adaptspec.control.rows import DrafterNumbers, Rows, decide_by_group, learn_by_group
from adaptspec.control.tasks import TaskNames
from adaptspec.decision import Decision, PolicyPart, Reason, StopTable
from adaptspec.errors import ConfigError, UnknownModelError
from adaptspec.request import Request
from adaptspec.rounds import RoundRecord


def untimed() -> float:
    """The timer of a controller whose decisions take no time, as in simulations: each round is decided anew."""
    return 0.0


@dataclass(eq=False)
class _Slot:
    """A policy under its number, by which rows refer to it. A dropped policy's number is reused once no row has it."""

    name: str
    policy: Policy
    numbers: DrafterNumbers
    running: int = 0  # rows


class Controller:
    """Splits the batch among policies, and holds them to what each row may do."""

    def __init__(
        self,
        policies: Mapping[str, Policy],
        default: str,
        drafters: Sequence[str],
        max_rows: int,
        *,
        cost: CostModel | None = None,
        task_names: TaskNames | None = None,
        rollouts: Mapping[str, Rollout] | None = None,
        routes: Sequence[Route] = (),
        timer: Callable[[], float] = untimed,
    ) -> None:
        """`drafters` are the engine's, in its order. `cost` is corrected by every round if given. `task_names` are
        those that the policies were built with. `rollouts` says which are canaries; the others are live. `routes` are
        the default policy's. `timer` returns seconds: where deciding takes much of a round's time, decisions are
        reused. The default timer stands still, so that every round is decided anew.

        Raises ConfigError if the default is not among the live policies, a policy wants a drafter the engine lacks, or
        the canaries want more than all requests.
        """
        self._rollouts = {name: (rollouts or {}).get(name, LIVE) for name in policies}
        if default not in policies or self._rollouts[default] != LIVE:
            live = [name for name, rollout in self._rollouts.items() if rollout == LIVE]
            raise ConfigError(f"there is no policy {default!r}; there are: {', '.join(live) or 'none'}")
        self._router = Router(default, self._rollouts, routes)
        self.policies = dict(policies)  # replaced and never changed: other threads may be reading
        self.default = default
        self._check_routes(routes, self.policies)
        self._drafters = tuple(drafters)
        self._slots = [_Slot(name, policy, self._numbers(name, policy)) for name, policy in self.policies.items()]
        self._cost = cost
        self.task_names = task_names or TaskNames()
        self._rows = Rows(max_rows)
        self._decided = 0
        self._timer = timer
        self._cache = DecisionCache()
        # Rounds, starts and ends of requests that policies have yet to be passed, in their order.
        self._buffer: list[Callable[[], None]] = []
        self._buffered_rounds, self._has_starts = 0, False  # among them
        self._failure: Exception | None = None  # of a policy that learned, not raised yet

    @property
    def search_depth(self) -> int:
        """How many tokens model-free drafters are to look for: the most that a policy with rows would take."""
        return max((slot.policy.search_depth or 0 for slot in self._slots if slot.running), default=0)

    @property
    def asked(self) -> set[int]:
        """The engine's numbers of the drafters that policies with rows use."""
        return {drafter for slot in self._slots if slot.running for drafter in slot.numbers.watched}

    def assigned(self, request: Request) -> str:
        """The policy of a request: see `Router`."""
        return self._router.policy_of(request)

    def adopt(
        self,
        name: str,
        policy: Policy,
        rollout: Rollout = LIVE,
        wanted: Collection[str] = (),
        routes: Sequence[Route] = (),
    ) -> None:
        """Serve a policy from the next round on. It replaces one of the same name, whose rows start anew under it.

        Called between rounds. `wanted` names the policies of requests that have yet to start: their numbers are not
        reused, even if dropped. `routes` are its `when:`, used if it is the default. Nothing has changed if it
        raises.
        Raises ConfigError if it wants a drafter the engine lacks, the default would no longer be live, the canaries
        would want more than all requests, or a route leads to no policy.
        """
        self.flush()
        rollouts = {**self._rollouts, name: rollout}
        router = Router(self.default, rollouts, routes if name == self.default else self._router.routes)
        self._check_routes(router.routes, self.policies)
        if name == self.default and rollout != LIVE:
            raise ConfigError(f"{name} is the default policy; give the {rollout.mode} a name of its own")
        self._put(name, policy, wanted)
        self._rollouts, self._router = rollouts, router

    def drop(self, name: str) -> None:
        """Serve a policy no longer, from the next round on; requests that it was given keep it to their end.

        Called between rounds. Nothing has changed if it raises.
        Raises ConfigError if it is the default, or its `when:` uses it.
        """
        if name == self.default:
            raise ConfigError(f"{name} is the default policy, which serves requests that name none; it cannot go")
        if any(route.policy == name for route in self._router.routes):
            raise ConfigError(f"{self.default} uses {name} (when); change that first")
        self._rollouts = {other: rollout for other, rollout in self._rollouts.items() if other != name}
        self._router = Router(self.default, self._rollouts, self._router.routes)
        self.policies = {other: policy for other, policy in self.policies.items() if other != name}

    def check(self, name: str, policy: Policy) -> None:
        """Raise ConfigError if a policy wants a drafter that the engine lacks; any thread may ask."""
        self._numbers(name, policy)

    def start(self, row: int, request: Request) -> None:
        """A request begins decoding in `row`. Raises UnknownModelError if it names a policy that is not here."""
        asked, name = request.speculation, self.assigned(request)
        number = next((number for number, slot in enumerate(self._slots) if slot.name == name), None)
        if number is None:
            there = f"there is no policy {name!r} here; served are: {', '.join(self.policies)}"
            raise UnknownModelError(there, "adaptspec.policy")
        self.finish(row)
        task = 0 if asked.task is None else self.task_names.add(asked.task)
        self._rows.start(row, number, task, asked)
        self._slots[number].running += 1
        self._buffer.append(partial(self._slots[number].policy.start, row))
        self._has_starts = True

    def finish(self, row: int) -> None:
        """The request in `row` has ended; a free row is left alone."""
        if not self._rows.taken[row]:
            return
        slot = self._slots[self._rows.policies[row]]
        self._rows.finish(row)
        slot.running -= 1
        self._buffer.append(partial(slot.policy.finish, row))
        # No round may follow, as where requests end at the first token after their prompt. The buffer stays bounded.
        if not self._buffered_rounds or not any(self._rows.taken):
            self.flush()

    def decide(self, signals: BatchSignals) -> Decision:
        """Depth, reason and engine drafter of every row, and the stop rule of the round.

        A decision may be that of an earlier round, so the caller does not change it.
        """
        if not len(signals.rows):
            return Decision(EMPTY_INT, EMPTY_INT, EMPTY_INT)
        rows = self._rows.of_round(signals, max(slot.policy.max_depth for slot in self._slots))
        known = self._cache.reused(signals, rows)
        if known is not None:
            return known
        expired = self._cache.expired
        if expired:
            self._cache.clear()
        if expired or self._has_starts:
            self.flush()
        begun = self._timer()
        decision = self._decide(signals, rows)
        self._cache.observe("decide", self._timer() - begun)
        self._cache.store(signals, rows, decision)
        return decision

    def repeat(self) -> bool:
        """Whether a round with the signals of the latest decision runs by it. If not, call `decide`.

        Rows must be those of the same requests.
        """
        return self._cache.repeat()

    def learn(self, record: RoundRecord) -> None:
        """Let the cost model and the policies take note of a round, at the latest before the next new decision."""
        if not len(record.rows):
            if self._cost is not None:
                self._cost.observe(record.work, record.timing)  # it has the price of a prompt token
            return
        self._cache.observe("round", record.timing.total)
        record, policies = self._attributed(record)
        self._buffer.append(partial(self._learn, record, policies))
        self._buffered_rounds += 1
        if self._cache.expired:
            self.flush()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def flush(self) -> None:
        """Pass policies all buffered rounds, starts and finishes, in their order.

        If a policy fails, the others still learn, and the next call of `learn` raises the first error: so decisions go
        on, and the policy can be replaced.
        """
        buffer, self._buffer = self._buffer, []
        self._has_starts = False
        begun = self._timer()
        for call in buffer:
            try:
                call()
            except Exception as error:  # noqa: BLE001 - other rounds and policies are to be learned from
                self._failure = self._failure or error
        if self._buffered_rounds:
            self._cache.observe("learn", (self._timer() - begun) / self._buffered_rounds)
            self._buffered_rounds = 0

    def learned_policies(self) -> Mapping[str, Policy]:
        """The policies, after they have learned from all rounds so far; called between rounds."""
        self.flush()
        return self.policies

    def _decide(self, signals: BatchSignals, rows: RoundRows) -> Decision:
        self._decided += 1
        signals.tasks = rows.tasks
        decision = decide_by_group(rows.policies, self._decide_one, signals)
        return replace(
            decision,
            stop=_with_floors(decision.stop, rows.thresholds) if self._rows.with_thresholds else decision.stop,
            number=self._decided,
            tasks=rows.tasks,
            policies=rows.policies,
            requests=rows.requests,
        )

    def _attributed(self, record: RoundRecord) -> tuple[RoundRecord, IntArray]:
        """The round and the policies of its rows [B]; the round says which requests still have their rows."""
        rows, decision = self._rows, record.decision
        if decision is None or not decision.number:  # made elsewhere: use what the rows have now
            return replace(record, tasks=rows.tasks[record.rows]), rows.policies[record.rows]
        policies, requests = decision.policies, decision.requests
        if record.index is not None:
            policies, requests = policies[record.index], requests[record.index]
        running = rows.requests[record.rows] == requests
        return record if running.all() else replace(record, running=running), policies

    def _learn(self, record: RoundRecord, policies: IntArray) -> None:
        if self._cost is not None:
            self._cost.observe(record.work, record.timing)
        learn_by_group(policies, self._learn_policy, record)

    def _learn_policy(self, number: int, record: RoundRecord) -> None:
        if number == UNDECIDED:
            return
        slot, memo = self._slots[number], None
        if record.decision is not None and record.decision.number:
            part = next((part for part in record.decision.parts if part.number == number), None)
            if part is None or part.policy is not slot.policy:  # late: another policy has taken its number
                return
            memo = part.memo
        slot.policy.learn(slot.numbers.record(record), memo)

    def _put(self, name: str, policy: Policy, wanted: Collection[str]) -> None:
        new = _Slot(name, policy, self._numbers(name, policy))
        self._cache.clear()
        kept = {*self.policies, *wanted}
        usable = [slot for slot in self._slots if slot.name == name or not (slot.name in kept or slot.running)]
        old = min(usable, key=lambda slot: slot.name != name, default=None)  # the one of this name, if there is one
        if old is None:
            self._slots.append(new)
        else:
            number = self._slots.index(old)
            for row in self._rows.of(number):
                policy.start(row)
                old.policy.finish(row)
            new.running = old.running
            self._slots[number] = new
        self.policies = {**self.policies, name: policy}

    def _decide_one(self, number: int, signals: BatchSignals) -> Decision:
        """A policy's decision in the engine's drafter numbers."""
        slot = self._slots[number]
        decision = slot.numbers.decided(slot.policy, signals)
        return replace(
            decision,
            reasons=self._explain_limits(decision, signals, slot.policy.max_depth),
            watched=() if slot.policy.search_depth == 0 else slot.numbers.watched,
            parts=(PolicyPart(number, slot.policy, decision.memo),),
        )

    def _explain_limits(self, decision: Decision, signals: BatchSignals, max_depth: int) -> IntArray:
        """Rows that run at their limit do so because of it: the request's own, or the lack of room."""
        short = signals.limits < max_depth
        if not short.any():  # which is nearly always
            return decision.reasons
        bound = short & (decision.depths == signals.limits)
        own = signals.limits >= self._rows.ceilings[signals.rows]
        return np.where(bound, np.where(own, int(Reason.REQUEST), int(Reason.CEILING)), decision.reasons)

    @staticmethod
    def _check_routes(routes: Sequence[Route], policies: Mapping[str, Policy]) -> None:
        missing = [route.policy for route in routes if route.policy not in policies]
        if missing:
            raise ConfigError(f"`when` uses the policy {missing[0]!r}; served are: {', '.join(policies)}")

    def _numbers(self, name: str, policy: Policy) -> DrafterNumbers:
        missing = [drafter for drafter in policy.wanted if drafter not in self._drafters]
        if missing:
            raise ConfigError(
                f"policy {name!r} wants the drafter {missing[0]!r}, but the engine has: "
                f"{', '.join(self._drafters) or 'none'}; load one or choose another policy"
            )
        return DrafterNumbers(policy.wanted, self._drafters)


def _with_floors(stop: StopTable | None, floors: FloatArray) -> StopTable | None:
    """Confidence floors [B] of requests' own in place of what their policy says; NaN: it has none."""
    own = ~np.isnan(floors)
    bound = StopTable(confidence=floors[:, None])
    return StopTable.stacked([(np.flatnonzero(~own), stop), (np.flatnonzero(own), bound)], len(floors))

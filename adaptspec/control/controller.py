"""The one place per round where a decision is made.

Calling sequence, all on the engine thread::

    controller = Controller({"goodput": policy}, "goodput", drafters=("draft-model", "ngram"), max_rows=16, cost=cost)
    controller.start(row, request)          # the request begins decoding in `row`
    decision = controller.decide(signals)   # once per round, also with no decoding rows
    ...                                     # draft, verify, commit
    controller.finish(row)                  # before or after the learn of its last round
    controller.learn(record)                # once per round; corrects the cost table too

`signals.tasks` need not be filled in: the task is taken from the request at `start`. `Decision.drafter`
indexes the engine's drafters. Knows policies through their protocol, and nothing of how they decide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from adaptspec.control.arrays import alike
from adaptspec.control.cost import CostTable
from adaptspec.control.policy import BatchSignals, Decision, Policy
from adaptspec.control.stopping import SplitStop, StopPart
from adaptspec.errors import ConfigError, UnknownModelError
from adaptspec.types import IntArray, Reason, Request, RoundRecord

_NOBODY = np.zeros(0, dtype=np.int64)


class Controller:
    """Splits the batch among policies, and holds them to what each row may do."""

    def __init__(
        self,
        policies: Mapping[str, Policy],
        default: str,
        drafters: Sequence[str],
        max_rows: int,
        *,
        cost: CostTable | None = None,
        task_names: Sequence[str] = (),
    ) -> None:
        """`drafters` are the engine's, in its order. `cost` is corrected by every round if given.

        Raises:
            ConfigError: the default is not among the policies, or a policy wants a drafter the engine lacks.
        """
        if default not in policies:
            raise ConfigError(f"there is no policy {default!r}; there are: {', '.join(policies) or 'none'}")
        self.policies = dict(policies)
        self.default = default
        self._names = list(self.policies)
        self._list = list(self.policies.values())
        self._drafters = tuple(drafters)
        self._engine_index = [self._translation(name, policy) for name, policy in self.policies.items()]
        self._cost = cost
        self._tasks = {name: 1 + i for i, name in enumerate(task_names)}
        self._policy_of: IntArray = np.full(max_rows, self._names.index(default), dtype=np.int64)
        self._ceiling: IntArray = np.full(max_rows, np.iinfo(np.int64).max)
        self._running = [0] * len(self._list)
        self._occupied = [False] * max_rows

    @property
    def tasks(self) -> tuple[str, ...]:
        """Names a request may give as its task."""
        return tuple(self._tasks)

    def start(self, row: int, request: Request) -> None:
        """A request begins decoding in `row`.

        Raises:
            UnknownModelError: it names a policy that is not here.
        """
        wishes = request.speculation
        name = wishes.policy or self.default
        if name not in self.policies:
            raise UnknownModelError(
                f"there is no policy {name!r} here; served are: {', '.join(self._names)}", "adaptspec.policy"
            )
        self.finish(row)
        which = self._names.index(name)
        task = self._tasks.get(wishes.task or "", 0)
        self._policy_of[row] = which
        self._ceiling[row] = np.iinfo(np.int64).max if wishes.max_depth is None else wishes.max_depth
        self._running[which] += 1
        self._occupied[row] = True
        self._list[which].start(row, task)

    def finish(self, row: int) -> None:
        """The request in `row` has ended; a free row is left alone."""
        if self._occupied[row]:
            which = int(self._policy_of[row])
            self._occupied[row] = False
            self._running[which] -= 1
            self._list[which].finish(row)

    def decide(self, signals: BatchSignals) -> Decision:
        """Depth, reason and engine drafter of every row, and the stop rule of the round."""
        if not len(signals.rows):
            return Decision(_NOBODY, _NOBODY, _NOBODY)
        used = [i for i, count in enumerate(self._running) if count]
        if len(used) <= 1:
            return self._decide_one(used[0] if used else int(self._policy_of[signals.rows[0]]), signals)
        return self._decide_many(signals)

    def learn(self, record: RoundRecord) -> None:
        """Let the cost table and the policies take note of a round."""
        if not len(record.rows):
            return
        if self._cost is not None:
            self._cost.observe(record, self._one_drafter(record))
        owners = self._policy_of[record.rows]
        first = int(owners[0])
        if alike(owners, first):
            self._list[first].learn(record)
            return
        for which in np.unique(owners).tolist():
            self._list[which].learn(_part(record, np.flatnonzero(owners == which)))

    def _decide_one(self, which: int, signals: BatchSignals) -> Decision:
        policy = self._list[which]
        decision = policy.decide(signals)
        reasons = decision.reasons
        limits, deepest = signals.limits, policy.max_depth
        if limits.item() < deepest if len(limits) == 1 else (limits < deepest).any():
            reasons = self._explain_limits(decision, signals, deepest)
        drafter = decision.drafter
        if not alike(drafter, 0) or self._engine_index[which][0]:
            drafter = self._engine_index[which][drafter]
        return Decision(decision.depths, reasons, drafter, decision.stop)

    def _decide_many(self, signals: BatchSignals) -> Decision:
        owners = self._policy_of[signals.rows]
        depths, reasons, drafter = (np.zeros(len(owners), dtype=np.int64) for _ in range(3))
        parts = []
        for which in np.unique(owners).tolist():
            mine = np.flatnonzero(owners == which)
            part = self._decide_one(which, signals.take(mine))
            depths[mine], reasons[mine], drafter[mine] = part.depths, part.reasons, part.drafter
            parts.append(StopPart(mine, part.stop))
        stops = any(part.stop is not None for part in parts)
        return Decision(depths, reasons, drafter, SplitStop(parts, len(owners)) if stops else None)

    def _explain_limits(self, decision: Decision, signals: BatchSignals, max_depth: int) -> IntArray:
        """Rows that run at their limit do so because of it: the request's own, or the lack of room."""
        bound = (decision.depths == signals.limits) & (signals.limits < max_depth)
        own = signals.limits >= self._ceiling[signals.rows]
        return np.where(bound, np.where(own, Reason.REQUEST, Reason.CEILING), decision.reasons)

    def _translation(self, name: str, policy: Policy) -> IntArray:
        # A policy that never drafts needs no drafter.
        wanted = policy.drafters if policy.max_depth else ()
        missing = [drafter for drafter in wanted if drafter not in self._drafters]
        if missing:
            raise ConfigError(
                f"policy {name!r} wants the drafter {missing[0]!r}, but the engine has: "
                f"{', '.join(self._drafters) or 'none'}; load one or choose another policy"
            )
        return np.array([self._drafters.index(drafter) for drafter in wanted] or [0], dtype=np.int64)

    def _one_drafter(self, record: RoundRecord) -> str | None:
        if not self._drafters:
            return None
        first = int(record.drafter[0])
        if alike(record.drafter, first):
            return self._drafters[first]
        used = set(record.drafter[record.drafted > 0].tolist())
        return self._drafters[used.pop()] if len(used) == 1 else None


def _part(record: RoundRecord, mine: IntArray) -> RoundRecord:
    return replace(
        record,
        request_ids=tuple(record.request_ids[i] for i in mine.tolist()),
        rows=record.rows[mine],
        depths=record.depths[mine],
        reasons=record.reasons[mine],
        drafter=record.drafter[mine],
        drafted=record.drafted[mine],
        accepted=record.accepted[mine],
        emitted=record.emitted[mine],
        context=record.context[mine],
        confidence=record.confidence[mine],
        entropy=record.entropy[mine],
    )

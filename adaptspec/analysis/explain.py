"""What a journal says of a policy's choices: counted by reason, depth and task, round by round, and its switches."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from adaptspec.analysis.journal_rounds import JournalLog, LoggedRound
from adaptspec.control.cost_model import CostModel
from adaptspec.decision import Reason
from adaptspec.errors import JournalError
from adaptspec.telemetry.guard_events import GuardEvents

# So many rounds without drafts tell how fast the machine was that day against its profile.
_PLAIN_ROUNDS = 8
_FREE = (Reason.POLICY, Reason.EXPLORE, Reason.FIXED)


@dataclass
class Group:
    """Sums over row-rounds that have something in common. A row's share of its round's seconds is one over the rows in
    it. `plain` adds up what those rounds would have taken without speculation, by the profile. Of row-rounds that
    drafted and whose policy estimates: `expected` accepted tokens and those that `came`.
    """

    rows: int = 0
    drafting: int = 0
    depth: int = 0
    drafted: int = 0
    accepted: int = 0
    nodes: int = 0
    first: int = 0
    emitted: int = 0
    seconds: float = 0.0
    plain: float = 0.0
    expected: float = 0.0
    came: int = 0

    def add(self, line: RowRound) -> None:
        self.rows += 1
        self.drafting += line.drafted > 0
        self.depth += line.depth
        self.drafted += line.drafted
        self.accepted += line.accepted
        self.nodes += line.nodes
        self.first += line.accepted > 0
        self.emitted += line.emitted
        self.seconds += line.seconds
        self.plain += line.plain
        if line.expected is not None and line.drafted:
            self.expected += line.expected
            self.came += line.accepted

    def to_json(self, pace: float) -> dict[str, Any]:
        """Plain data. `pace` is how much slower the machine was than its profile."""
        return {
            "row_rounds": self.rows,
            "drafting": self.drafting,
            "mean_depth": self.depth / self.rows,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "nodes": self.nodes,
            "first_token_acceptance": self.first / self.drafting if self.drafting else None,
            "emitted": self.emitted,
            "goodput_over_plain": self.over_plain(pace),
            "expected_accepted": self.expected or None,
            "came_of_them": self.came if self.expected else None,
        }

    def over_plain(self, pace: float) -> float | None:
        """Tokens per second over plain decoding's, which emits one token per row-round."""
        return self.emitted / self.rows * pace * self.plain / self.seconds if self.seconds else None


@dataclass(frozen=True)
class RowRound:
    """One request in one round. `seconds` is its share of the round's, `plain` of those without speculation."""

    number: int
    request: str
    task: str | None
    size: int
    depth: int
    drafter: str
    reason: Reason
    drafted: int
    accepted: int
    nodes: int
    emitted: int
    expected: float | None  # accepted tokens
    seconds: float
    plain: float
    reads_prompt: bool

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "reason": self.reason.name.lower()}


@dataclass
class Explanation:
    """All that is said of one policy: sums, and the latest row-rounds that were asked for. `pace` is how much slower
    the machine was than its profile said, by rounds without drafts (1: too few of them).
    """

    policy: str
    total: Group = field(default_factory=Group)
    reasons: defaultdict[Reason, Group] = field(default_factory=lambda: defaultdict(Group))
    depths: defaultdict[int, Group] = field(default_factory=lambda: defaultdict(Group))
    tasks: defaultdict[str, Group] = field(default_factory=lambda: defaultdict(Group))
    requests: set[str] = field(default_factory=set)
    rounds: int = 0
    switches: int = 0
    chosen: set[int] = field(default_factory=set)  # depths that nothing but the policy itself asked for
    guarding: GuardEvents = field(default_factory=GuardEvents)
    lines: list[RowRound] = field(default_factory=list)
    missing_lines: int = 0
    strays: int = 0
    expected_tokens: float = 0.0  # by the goodput expected of each round, over what it took
    came_tokens: int = 0
    _plain_seconds: float = 0.0
    _plain_expected: float = 0.0
    _plain_rounds: int = 0
    _last_depth: dict[str, int] = field(default_factory=dict)

    @property
    def pace(self) -> float:
        """See the class."""
        return self._plain_seconds / self._plain_expected if self._plain_rounds >= _PLAIN_ROUNDS else 1.0

    @property
    def goodput_expected_over_came(self) -> float | None:
        """What rounds were expected to emit in the time they took, over what they emitted."""
        return self.expected_tokens / self.came_tokens if self.came_tokens else None

    def add(self, logged: LoggedRound, lines: list[RowRound]) -> None:
        self.rounds += 1
        whole, own = logged.whole, logged.own
        self.guarding.add(own.reasons.tolist())
        for line in lines:
            self.requests.add(line.request)
            self.switches += self._last_depth.get(line.request, line.depth) != line.depth
            self._last_depth[line.request] = line.depth
            if line.reason in _FREE:
                self.chosen.add(line.depth)
            if not line.reads_prompt:  # else its time is the prompt's as well
                task = self.tasks[line.task or "unknown"]
                for group in (self.total, self.reasons[line.reason], self.depths[line.depth], task):
                    group.add(line)
        if whole.prefill_tokens:
            return
        if not whole.drafted.any() and not whole.draft_steps:
            self._plain_rounds += 1
            self._plain_seconds += whole.timing.total
            self._plain_expected += sum(line.plain for line in lines) * logged.size / len(lines)
        if own.expected is not None and not np.isnan(own.expected.goodput) and logged.size == len(lines):
            self.expected_tokens += own.expected.goodput * whole.timing.total
            self.came_tokens += int(own.emitted.sum())

    def to_json(self) -> dict[str, Any]:
        pace = self.pace
        return {
            "policy": self.policy,
            "requests": len(self.requests),
            "rounds": self.rounds,
            "machine_over_profile": pace,
            "total": self.total.to_json(pace) if self.total.rows else None,
            "reasons": {reason.name.lower(): group.to_json(pace) for reason, group in self.reasons.items()},
            "depths": {str(depth): self.depths[depth].to_json(pace) for depth in sorted(self.depths)},
            "tasks": {task: group.to_json(pace) for task, group in self.tasks.items()},
            "depth_changes": self.switches,
            "switched_off_by_guard": self.guarding.switched_off,
            "probes": self.guarding.probes,
            "probes_won": self.guarding.came_back,
            "baseline_rounds": self.guarding.baselines,
            "goodput_expected_over_came": self.goodput_expected_over_came,
            "lines_missing": self.missing_lines,
            "rows_of_unknown_requests": self.strays,
            "row_rounds": [line.to_json() for line in self.lines],
        }


def explain(log: JournalLog, policy: str, *, request: str | None = None, rounds: int = 0) -> Explanation:
    """Read a journal to its end. With a `request`, only its rounds count; the last `rounds` are kept in full. Raises
    JournalError: it cannot be read, or has no rounds of the policy (says which policies it has), or of the request.
    """
    found = Explanation(policy)
    kept: deque[list[RowRound]] = deque(maxlen=rounds)
    costs: CostModel | None = None
    for logged in log.rounds(policy):
        costs = costs or log.costs()
        lines = _lines(log, logged, costs)
        if request is not None:
            lines = [line for line in lines if line.request == request]
        if lines:
            found.add(logged, lines)
            kept.append(lines)
    found.missing_lines, found.strays = log.missing_lines, log.strays
    found.lines.extend(line for lines in kept for line in lines)
    if not found.rounds:
        known = None if request is None else log.requests.get(request)
        if known is not None:
            raise JournalError(f"{log.path}: request {request} ran under policy {known.policy!r}; explain that one")
        if request is not None and log.policies.get(policy):
            raise JournalError(f"{log.path}: there is no request {request!r}; its ids are those of the responses")
        raise log.nothing_of(policy)
    return found


def _lines(log: JournalLog, logged: LoggedRound, costs: CostModel) -> list[RowRound]:
    own, whole, size = logged.own, logged.whole, logged.size
    expected = own.expected
    plain = costs.plain_seconds(size, float(whole.context.sum())) / size
    return [
        RowRound(
            number=own.number,
            request=name,
            task=log.requests[name].task,
            size=size,
            depth=int(own.depths[i]),
            drafter=log.drafters[int(own.drafter[i])] if log.drafters else "",
            reason=Reason(int(own.reasons[i])),
            drafted=int(own.drafted[i]),
            accepted=int(own.accepted[i]),
            nodes=int(own.nodes[i]),
            emitted=int(own.emitted[i]),
            expected=None if expected is None else _known(expected.accepted[i]),
            seconds=own.timing.total / size,
            plain=plain,
            reads_prompt=whole.prefill_tokens > 0,
        )
        for i, name in enumerate(own.request_ids)
    ]


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)

"""Why a policy chose what it did, from a journal: sums by reason, depth and task, and single rounds."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import nan
from typing import Any

import numpy as np

from adaptspec.analysis.fixed_depths import FixedDepth, FixedDepths
from adaptspec.analysis.journal_reader import JournalReader, PolicyRound
from adaptspec.decision import Reason
from adaptspec.errors import JournalError
from adaptspec.rounds import RoundRecord
from adaptspec.telemetry.guard_events import GuardEvents
from adaptspec.telemetry.requests import RequestRound, request_rounds
from adaptspec.telemetry.speedup import Estimate, speedup
from adaptspec.telemetry.sums import RoundSums, RowTable

_CHUNK = 1024  # rounds that are summed at once
_FREE = (Reason.POLICY, Reason.EXPLORE, Reason.FIXED)


@dataclass(frozen=True)
class Group:
    """Rows that have something in common. `gain` over plain decoding; None: unknown."""

    sums: RoundSums = field(default_factory=RoundSums)
    gain: Estimate | None = None

    @property
    def mean_depth(self) -> float:
        return float(self.sums.depths @ np.arange(len(self.sums.depths))) / max(self.sums.rows, 1)

    def to_json(self) -> dict[str, Any]:
        """Plain data; unknown is null."""
        sums = self.sums
        first = int(sums.accepted_per_position[0]) if sums.drafted else 0
        return {
            "row_rounds": sums.rows,
            "drafting": sums.drafts,
            "mean_depth": self.mean_depth,
            "drafted": sums.drafted,
            "accepted": sums.accepted,
            "nodes": sums.nodes,
            "first_token_acceptance": first / sums.drafts if sums.drafts else None,
            "emitted": sums.emitted,
            "speedup": None if self.gain is None else asdict(self.gain),
            "expected_accepted": sums.expected_accepted or None,
            "accepted_as_expected": sums.accepted_as_expected if sums.expected_accepted else None,
        }


@dataclass(frozen=True)
class Line:
    """One round of one request."""

    request: str
    task: str | None
    drafter: str
    round: RequestRound

    def to_json(self) -> dict[str, Any]:
        values = {name: None if value != value else value for name, value in self.round._asdict().items()}  # noqa: PLR0124
        names = {"drafter": self.drafter, "reason": Reason(self.round.reason).label}
        return {"request": self.request, "task": self.task} | values | names


@dataclass(frozen=True)
class Explanation:
    """All that a journal says of one policy, or of one request of it.

    `lines`: the latest rounds, as many as were asked for. `chosen`: depths that nothing but the policy asked for.
    `best_fixed`: the fixed depth that would have gained most on the same text; None: its rounds do not show enough.
    """

    policy: str
    total: Group
    reasons: Mapping[Reason, Group]
    depths: Mapping[int, Group]
    tasks: Mapping[str, Group]
    best_fixed: FixedDepth | None
    guard: GuardEvents
    requests: Sequence[str]
    depth_changes: int
    chosen: frozenset[int]
    lines: Sequence[Line]
    missing_lines: int
    unknown_rows: int

    @property
    def expected_over_measured(self) -> float | None:
        """The tokens per second that the policy expected, over those that came."""
        forecast = self.total.sums.plain_decoding + self.total.sums.drafting
        return forecast.expected / forecast.emitted if forecast.emitted else None

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "policy": self.policy,
            "requests": len(self.requests),
            "rounds": self.total.sums.rounds,
            "total": self.total.to_json(),
            "reasons": {reason.label: group.to_json() for reason, group in self.reasons.items()},
            "depths": {str(depth): group.to_json() for depth, group in self.depths.items()},
            "tasks": {task: group.to_json() for task, group in self.tasks.items()},
            "best_fixed_depth": None if self.best_fixed is None else asdict(self.best_fixed),
            "depth_changes": self.depth_changes,
            "switched_off_by_guard": self.guard.switched_off,
            "probes": self.guard.probes,
            "probes_won": self.guard.came_back,
            "baseline_rounds": self.guard.baselines,
            "goodput_expected_over_measured": self.expected_over_measured,
            "lines_missing": self.missing_lines,
            "rows_of_unknown_requests": self.unknown_rows,
            "lines": [line.to_json() for line in self.lines],
        }


def explain(reader: JournalReader, policy: str, *, request: str | None = None, last_rounds: int = 0) -> Explanation:
    """Read a journal to its end. With a `request`, only its rounds count; the `last_rounds` are returned in full.

    The speed-up is that of the server's metrics, page and traces: by a cost model that learns from the same rounds.

    Raises:
        JournalError: it cannot be read, or has no rounds of the policy (it says which policies it has) or request.
    """
    collected: _Collected | None = None
    for found in reader.rounds(policy):
        collected = collected or _Collected(reader, last_rounds)
        collected.add(found, request)
    if collected is None or not collected.requests:
        raise _nothing_found(reader, policy, request)
    return collected.explanation(policy)


def _nothing_found(reader: JournalReader, policy: str, request: str | None) -> JournalError:
    known = None if request is None else reader.requests.get(request)
    if known is not None:
        return JournalError(f"{reader.path}: request {request} ran under policy {known.policy!r}; explain that one")
    if request is not None and reader.policies.get(policy):
        return JournalError(f"{reader.path}: there is no request {request!r}; its ids are those of the responses")
    return reader.no_rounds(policy)


class _Collected:
    """Sums over the rounds of one policy."""

    def __init__(self, reader: JournalReader, last_rounds: int) -> None:
        self._reader = reader
        self._costs = reader.costs()
        self._waiting: list[RoundRecord] = []  # to be summed, with the policy's rows alone
        self._total = RoundSums()
        self._by: dict[str, dict[Any, RoundSums]] = {"reasons": {}, "depths": {}, "tasks": {}}
        self._fixed = FixedDepths(reader.drafters)
        self._guard = GuardEvents()
        self._last_depth: dict[str, int] = {}
        self._depth_changes = 0
        self._chosen: set[int] = set()
        self._latest: deque[tuple[RoundRecord, int]] = deque(maxlen=last_rounds)

    @property
    def requests(self) -> Sequence[str]:
        return list(self._last_depth)

    def add(self, found: PolicyRound, request: str | None) -> None:
        own, whole = found.own, found.whole
        self._costs.observe(whole.work, whole.timing)
        if request is not None:
            rows = [i for i, name in enumerate(own.request_ids) if name == request]
            if not rows:
                return
            own = own.take(np.array(rows))
        if own.expected is not None and len(own.rows) < len(whole.rows):
            # The goodput that was expected is that of all rows together.
            own = replace(own, expected=replace(own.expected, goodput=nan, other=nan))
        self._guard.add(own.reasons.tolist())
        self._fixed.add(own)
        self._latest.append((own, len(whole.rows)))
        for name, depth, reason in zip(own.request_ids, own.depths.tolist(), own.reasons.tolist(), strict=True):
            self._depth_changes += self._last_depth.get(name, depth) != depth
            self._last_depth[name] = depth
            if reason in _FREE:
                self._chosen.add(depth)
        self._waiting.append(own)
        if len(self._waiting) >= _CHUNK:
            self._sum()

    def explanation(self, policy: str) -> Explanation:
        self._sum()
        return Explanation(
            policy=policy,
            total=self._group(self._total),
            reasons={Reason(code): self._group(sums) for code, sums in self._by["reasons"].items()},
            depths={depth: self._group(self._by["depths"][depth]) for depth in sorted(self._by["depths"])},
            tasks={task: self._group(sums) for task, sums in self._by["tasks"].items()},
            best_fixed=self._fixed.best(self._costs, self._total.plain),
            guard=self._guard,
            requests=self.requests,
            depth_changes=self._depth_changes,
            chosen=frozenset(self._chosen),
            lines=[line for record, rows in self._latest for line in self._lines(record, rows)],
            missing_lines=self._reader.missing_lines,
            unknown_rows=self._reader.unknown_rows,
        )

    def _sum(self) -> None:
        if not self._waiting:
            return
        records, self._waiting = self._waiting, []
        table = RowTable(records, self._costs)
        self._total = self._total + table.total()
        self._add_groups("reasons", table, [code for one in records for code in one.reasons.tolist()])
        self._add_groups("depths", table, [depth for one in records for depth in one.depths.tolist()])
        self._add_groups("tasks", table, [self._task(name) or "unknown" for one in records for name in one.request_ids])

    def _add_groups(self, name: str, table: RowTable, keys: Sequence[Any]) -> None:
        """Add rows to the sums of their keys [N]."""
        index = {key: number for number, key in enumerate(dict.fromkeys(keys))}
        groups = self._by[name]
        for key, sums in zip(index, table.by_row(np.array([index[key] for key in keys]), len(index)), strict=True):
            groups[key] = groups[key] + sums if key in groups else sums

    def _group(self, sums: RoundSums) -> Group:
        return Group(sums, speedup(self._costs, sums.ran, sums.plain))

    def _task(self, request: str) -> str | None:
        return self._reader.requests[request].task

    def _lines(self, record: RoundRecord, rows: int) -> list[Line]:
        drafters, lines = self._reader.drafters, []
        for name, values in zip(record.request_ids, request_rounds(record, record.ended), strict=True):
            one = RequestRound._make(values)._replace(rows=rows)
            lines.append(Line(name, self._task(name), drafters[one.drafter] if drafters else "", one))
        return lines

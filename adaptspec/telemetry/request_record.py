"""What is known of one request: when it was where, what was decided for it round by round, and how it ended.

Never its text, nor token ids, but in the request and the completion themselves.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from adaptspec.telemetry.live_schema import Bar
from adaptspec.types import Completion, Reason, Request, RoundRecord

# So many rounds of a request are kept one by one, so many of its rare events; sums go on.
ROUNDS_KEPT = 512
EVENTS_KEPT = 32
_GUARDED, _PROBING, _OFF = int(Reason.GUARD), int(Reason.PROBE), (int(Reason.GUARD), int(Reason.OFF))


@dataclass(frozen=True)
class RareEvent:
    """Something rare that happened to a request; `when` in seconds on the monotonic clock."""

    when: float
    name: str  # switch, off, probe, preempt, resume, reload
    detail: str


@dataclass
class Forecast:
    """Sums over rounds whose policy named a goodput: tokens by what it chose and by the other choice, and what came.

    The other choice is plain decoding in rounds that drafted, and the best drafts in those that did not. `compared` are
    the seconds of those rounds of which it was known.
    """

    seconds: float = 0.0
    tokens: float = 0.0
    came: int = 0
    compared: float = 0.0
    compared_tokens: float = 0.0
    other_tokens: float = 0.0

    def add(self, goodput: float, other: float, seconds: float, came: int) -> None:
        """One more round."""
        self.seconds += seconds
        self.tokens += goodput * seconds
        self.came += came
        if not math.isnan(other):
            self.compared += seconds
            self.compared_tokens += goodput * seconds
            self.other_tokens += other * seconds


@dataclass
class RoundHistory:
    """A request's rounds. Lists hold one entry per decoding round, up to `ROUNDS_KEPT` of them.

    `accepted` counts drafted tokens that were emitted; `ends` and `seconds` are when rounds ended and what they took.
    Arms and propensities are there where a policy explores.
    """

    rounds: int = 0
    draft_rounds: int = 0
    numbers: list[int] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    tiers: list[int] = field(default_factory=list)
    reasons: list[int] = field(default_factory=list)
    drafters: list[int] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    arms: list[int] = field(default_factory=list)
    propensities: list[float] = field(default_factory=list)
    reason_counts: Counter[int] = field(default_factory=Counter)
    off_counts: Counter[int] = field(default_factory=Counter)  # of rounds that were not to draft
    batch_sizes: int = 0  # summed over rounds
    drafting: Forecast = field(default_factory=Forecast)  # of rounds in which anybody was to draft
    plain: Forecast = field(default_factory=Forecast)
    expected_accepted: float = 0.0
    entropy: float = 0.0
    confidence: float = 0.0
    scored: int = 0  # rounds that said how sure the draft was of its first token
    switches: int = 0
    events: list[RareEvent] = field(default_factory=list)
    events_dropped: int = 0

    @property
    def truncated(self) -> bool:
        """Whether rounds are missing from the lists."""
        return self.rounds > len(self.tiers)

    def happened(self, when: float, name: str, detail: str) -> None:
        """Note something rare."""
        if len(self.events) < EVENTS_KEPT:
            self.events.append(RareEvent(when, name, detail))
        else:
            self.events_dropped += 1

    def add(self, record: RoundRecord, i: int, ended: float, drafters: Sequence[str]) -> None:
        """Note a round in which the request was row `i` of the batch."""
        depth, reason, drafter = record.depths.item(i), record.reasons.item(i), record.drafter.item(i)
        drafted, accepted = record.drafted.item(i), min(record.accepted.item(i), record.emitted.item(i))
        if self.rounds and not self.truncated:
            self._note_changes(ended - record.total_seconds, depth, reason, drafter, drafters)
        self.rounds += 1
        self.draft_rounds += drafted > 0
        self.reason_counts[reason] += 1
        if not depth:
            self.off_counts[reason] += 1
        self.batch_sizes += len(record.request_ids)
        if drafted:
            self._note_draft(record, i)
        if len(self.tiers) < ROUNDS_KEPT:
            self.numbers.append(record.number)
            self.drafted.append(drafted)
            self.accepted.append(accepted)
            self.tiers.append(depth)
            self.reasons.append(reason)
            self.drafters.append(drafter)
            self.ends.append(ended)
            self.seconds.append(record.total_seconds)
            if record.provenance is not None:
                self.arms.append(record.provenance.arms.item(i))
                self.propensities.append(record.provenance.propensities.item(i))

    def _note_draft(self, record: RoundRecord, i: int) -> None:
        sure = record.confidence.item(i, 0) if record.confidence.shape[1] else math.nan
        if not math.isnan(sure):
            self.scored += 1
            self.confidence += sure
            self.entropy += record.entropy.item(i, 0)
        if record.expected is not None:
            expected = record.expected.accepted.item(i)
            self.expected_accepted += 0.0 if math.isnan(expected) else expected

    def _note_changes(self, when: float, depth: int, reason: int, drafter: int, drafters: Sequence[str]) -> None:
        """Note what is another than in the request's last round."""
        before, was = self.reasons[-1], self.tiers[-1]
        if reason == _PROBING and before != _PROBING:
            self.happened(when, "probe", "speculation is tried again")
        elif reason in _OFF and before not in _OFF:
            why = "drafting measured slower" if reason == _GUARDED else "drafts are expected to lose"
            self.happened(when, "off", why)
        if depth and (not was or drafter != self.drafters[-1]):
            self.switches += 1
            self.happened(when, "switch", f"to {drafter_name(drafters, drafter)} at {depth}")


@dataclass
class RequestRecord:
    """One request, `admitted` on the monotonic clock, in a `row` of its own; `tokens` counts those of rounds."""

    request: Request
    row: int
    admitted: float
    tokens: int = 0
    completion: Completion | None = None
    history: RoundHistory = field(default_factory=RoundHistory)

    def card(self) -> dict[str, Any]:
        """What is said of it, whatever became of it, as plain data."""
        wishes = self.request.speculation
        return {
            "id": self.request.id,
            "task": wishes.task,
            "task_detected": wishes.task_detected,
            "policy": wishes.policy,
            "prompt_tokens": len(self.request.prompt),
            "max_tokens": self.request.sampling.max_tokens,
        }

    def running(self, clock: float) -> dict[str, Any]:
        """As plain data while it runs; `clock` turns monotonic seconds into seconds since 1970."""
        return self.card() | {"admitted": round(self.admitted + clock, 4), "tokens": self.tokens}

    def ended(self, clock: float) -> dict[str, Any]:
        """As plain data once it has ended."""
        assert self.completion is not None
        stats, timings = self.completion.stats, self.completion.timings
        times = {name: getattr(timings, name) for name in ("arrived", "admitted", "first_token", "finished")}
        return self.card() | {
            "policy": stats.policy,
            "finish": self.completion.finish.value,
            "tokens": len(self.completion.tokens),
            "rounds": stats.rounds,
            "draft_rounds": stats.draft_rounds,
            "drafted": stats.drafted,
            "accepted": stats.accepted,
            **{name: None if at is None else round(at + clock, 4) for name, at in times.items()},
        }


def bars_of(rounds: Sequence[RoundRecord]) -> dict[str, list[Bar]]:
    """The rounds of each request, oldest first."""
    bars: dict[str, list[Bar]] = {}
    for record in rounds:
        columns = zip(
            record.depths.tolist(),
            record.drafted.tolist(),
            map(min, record.accepted.tolist(), record.emitted.tolist()),
            record.emitted.tolist(),
            record.drafter.tolist(),
            record.reasons.tolist(),
            map(_mean, record.entropy.tolist()),
            strict=True,
        )
        for name, bar in zip(record.request_ids, map(Bar._make, columns), strict=True):
            bars.setdefault(name, []).append(bar)
    return bars


def drafter_name(drafters: Sequence[str], which: int) -> str:
    """Its name, or its number where nobody said the names."""
    return drafters[which] if which < len(drafters) else str(which)


def _mean(entropy: list[float]) -> float | None:
    known = [value for value in entropy if not math.isnan(value)]
    return round(sum(known) / len(known), 3) if known else None

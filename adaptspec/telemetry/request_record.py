"""The story of each request: when it was where, and what was decided for it round by round.

Put together from what the sinks of an engine are told, in order. Knows records and requests; it does not know spans.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from adaptspec.control.arrays import total
from adaptspec.types import Completion, Reason, Request, RoundRecord

# So many rounds of a request are kept one by one, so many of its rare facts; sums go on.
ROUNDS_KEPT = 512
FACTS_KEPT = 32
# Requests at once. More would mean that ends were missed.
_MOST = 4096
_GUARDED, _PROBING, _OFF = int(Reason.GUARD), int(Reason.PROBE), (int(Reason.GUARD), int(Reason.OFF))


@dataclass(frozen=True)
class Fact:
    """Something rare that happened to a request; `when` in seconds on the monotonic clock."""

    when: float
    name: str  # switch, off, probe, preempt, resume, reload
    detail: str


@dataclass
class Story:
    """One request from its admission on. Lists hold one entry per decoding round, up to `ROUNDS_KEPT` of them.

    `accepted` counts drafted tokens that were emitted; `ends` and `seconds` are when rounds ended and what they took.
    Arms and propensities are -1 and NaN where a policy does not explore. Of rounds whose policy named a goodput:
    `expected_tokens` is that times their seconds, `came_tokens` what all their rows emitted.
    """

    request: Request
    completion: Completion | None = None
    rounds: int = 0
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
    batch_sizes: int = 0  # sums over rounds
    round_seconds: float = 0.0
    expected_tokens: float = 0.0
    expected_seconds: float = 0.0
    came_tokens: int = 0
    expected_accepted: float = 0.0
    entropy: float = 0.0
    confidence: float = 0.0
    scored: int = 0  # rounds that said how sure the draft was of its first token
    switches: int = 0
    facts: list[Fact] = field(default_factory=list)
    facts_dropped: int = 0

    @property
    def truncated(self) -> bool:
        """Whether rounds are missing from the lists."""
        return self.rounds > len(self.tiers)

    def keep(self, drafted: int, accepted: int, tier: int, reason: int, drafter: int) -> None:
        """Note one round by itself."""
        self.drafted.append(drafted)
        self.accepted.append(accepted)
        self.tiers.append(tier)
        self.reasons.append(reason)
        self.drafters.append(drafter)

    def tell(self, fact: Fact) -> None:
        """Note something rare."""
        if len(self.facts) < FACTS_KEPT:
            self.facts.append(fact)
        else:
            self.facts_dropped += 1


class Stories:
    """All requests that run. Fed in the order in which things happened."""

    def __init__(self, drafters: Sequence[str]) -> None:
        self._drafters = tuple(drafters)
        self._of: dict[str, Story] = {}
        self._batch: tuple[str, ...] = ()
        self._decoding: list[Story | None] = []
        self._away: set[str] = set()

    @property
    def running(self) -> list[Story]:
        """Those that have not ended."""
        return list(self._of.values())

    def start(self, request: Request) -> None:
        """A request was admitted."""
        if len(self._of) >= _MOST:
            self._of.pop(next(iter(self._of)))
        self._of[request.id] = Story(request)

    def end(self, request: Request, completion: Completion) -> Story:
        """A request has ended, admitted or not; its whole story."""
        story = self._of.pop(request.id, None) or Story(request)
        self._away.discard(request.id)
        story.completion = completion
        return story

    def add(self, record: RoundRecord, ended: float) -> list[Story]:
        """A round ended; the stories of its rows."""
        if record.request_ids != self._batch:
            self._change_batch(record, ended - record.total_seconds)
        accepted = list(map(min, record.accepted.tolist(), record.emitted.tolist()))
        told, hopes = record.provenance, record.expected
        columns = zip(
            self._decoding,
            record.drafted.tolist(),
            accepted,
            record.depths.tolist(),
            record.reasons.tolist(),
            record.drafter.tolist(),
            strict=True,
        )
        goodput = math.nan if hopes is None else hopes.goodput
        emitted = total(record.emitted)
        for i, (story, drafted, kept, depth, reason, drafter) in enumerate(columns):
            if story is None:
                continue
            self._turn(story, depth, reason, drafter, ended - record.total_seconds)
            story.rounds += 1
            story.reason_counts[reason] += 1
            story.batch_sizes += len(accepted)
            story.round_seconds += record.total_seconds
            if not math.isnan(goodput):
                story.expected_tokens += goodput * record.total_seconds
                story.expected_seconds += record.total_seconds
                story.came_tokens += emitted
            if drafted:
                self._note_draft(story, record, i)
            if len(story.tiers) < ROUNDS_KEPT:
                story.keep(drafted, kept, depth, reason, drafter)
                story.ends.append(ended)
                story.seconds.append(record.total_seconds)
                if told is not None:
                    story.arms.append(told.arms.item(i))
                    story.propensities.append(told.propensities.item(i))
        return [story for story in self._decoding if story is not None]

    def _note_draft(self, story: Story, record: RoundRecord, i: int) -> None:
        sure = record.confidence.item(i, 0) if record.confidence.shape[1] else math.nan
        if not math.isnan(sure):
            story.scored += 1
            story.confidence += sure
            story.entropy += record.entropy.item(i, 0)
        if record.expected is not None:
            hoped = record.expected.accepted.item(i)
            story.expected_accepted += 0.0 if math.isnan(hoped) else hoped

    def _turn(self, story: Story, depth: int, reason: int, drafter: int, when: float) -> None:
        """Note what is another than in the request's last round."""
        if not story.reason_counts or story.truncated:
            return
        before, was = story.reasons[-1], story.tiers[-1]
        if reason == _PROBING and before != _PROBING:
            story.tell(Fact(when, "probe", "speculation is tried again"))
        elif reason in _OFF and before not in _OFF:
            why = "drafting measured slower" if reason == _GUARDED else "drafts are expected to lose"
            story.tell(Fact(when, "off", why))
        if depth and (not was or drafter != story.drafters[-1]):
            story.switches += 1
            story.tell(Fact(when, "switch", f"to {self._name(drafter)} at {depth}"))

    def _change_batch(self, record: RoundRecord, when: float) -> None:
        """Who is missing and has not ended gave way to others, and comes back when there is room."""
        names = set(record.request_ids)
        for name in self._batch:
            story = self._of.get(name)
            if name not in names and story is not None:
                self._away.add(name)
                story.tell(Fact(when, "preempt", "gave way: the cache was full"))
        for name in self._away & names:
            self._away.discard(name)
            if name in self._of:
                self._of[name].tell(Fact(when, "resume", "has room again"))
        self._batch = record.request_ids
        self._decoding = [self._of.get(name) for name in record.request_ids]

    def _name(self, drafter: int) -> str:
        return self._drafters[drafter] if drafter < len(self._drafters) else str(drafter)

"""A policy on trial: it decides beside the one that acts, and what its decisions would have earned is estimated.

Knows rounds as they were and the cost table; it touches no request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from adaptspec.control.acceptance import Acceptance
from adaptspec.control.arrays import places_of, some, total
from adaptspec.control.cost import CostTable
from adaptspec.control.counterfactual import Counterfactual
from adaptspec.control.numbering import DrafterNumbers
from adaptspec.control.policy import Awaited, BatchSignals, Decision, Policy
from adaptspec.types import BoolArray, FloatArray, IntArray, RoundRecord

# Estimates are over about the last thousand rounds, so that they follow traffic and what has been learned.
_FADE = 0.999


@dataclass(frozen=True)
class ShadowEstimate:
    """What a shadow would have earned against the policy that acted, over the same rounds.

    `goodput_ratio` is its estimated goodput over the acting policy's (1.0 before the first round). `guessed` is the
    share of its tokens that nothing observed says it would have got: those it would have drafted beyond all that was
    accepted.
    """

    policy: str
    against: str
    rounds: int
    goodput_ratio: float
    guessed: float


class ShadowPolicy:
    """Estimated goodput = sum(tokens) / sum(seconds), round by round from where the acting policy really stood.

    Tokens: a round run at depth d tells exactly what depths up to d would have earned, and deeper ones too where a
    token was rejected. Where all d were accepted, those beyond are estimated from the acceptance seen on this traffic
    (their expected number counts). Of a drafter that did not run, the round tells what its hindsight says, or nothing.
    Seconds: those measured, plus what the cost table says of the difference. Catching up is charged for the tokens
    that the shadow itself would not have drafted through. Whole rounds are compared, rows of other policies included.

    The shadow learns from the rounds it would have had; unknown acceptances are drawn (seeded), so that it learns the
    estimate, and no more. One round is a different one at most: it never meets the text position, nor the batch, that
    its own choices would have led to, so that effects over many rounds are seen only as far as each round shows them.
    """

    def __init__(
        self,
        name: str,
        policy: Policy,
        against: str,
        drafters: Sequence[str],
        max_rows: int,
        *,
        cost: CostTable,
        tasks: int,
    ) -> None:
        """`drafters` are the engine's; `tasks` counts the known tasks and task 0, unknown."""
        self.name = name
        self.against = against
        self.policy = policy
        self._cost = cost
        self._drafters = tuple(drafters)
        self._numbers = DrafterNumbers(policy.drafters if policy.max_depth else (), drafters)
        depth = max(1, policy.max_depth)
        self._signals = [Acceptance(max_rows, tasks, depth) for _ in drafters]
        self._depth = depth
        self._mine: BoolArray = np.zeros(max_rows, dtype=np.bool_)
        self._lag: IntArray = np.full((len(drafters), max_rows), -1, dtype=np.int64)
        self._awaited: Awaited[_Pending] = Awaited()
        self._dice = np.random.default_rng(0)
        self._rounds = 0
        self._sums: FloatArray = np.zeros(5)  # its tokens, guessed ones, its seconds, acting tokens, acting seconds

    @property
    def watched(self) -> tuple[int, ...]:
        """The engine's numbers of its drafters, to be scored where they do not draft."""
        return self._numbers.watched

    @property
    def estimate(self) -> ShadowEstimate:
        """What it would have earned so far; may be asked from any thread."""
        tokens, guessed, seconds, acting_tokens, acting_seconds = self._sums.tolist()
        ratio = tokens * acting_seconds / (seconds * acting_tokens) if seconds * acting_tokens else 1.0
        return ShadowEstimate(self.name, self.against, self._rounds, ratio, guessed / tokens if tokens else 0.0)

    def start(self, row: int) -> None:
        """A request of the policy it watches begins decoding in `row`."""
        self._mine[row] = True
        self._lag[:, row] = -1
        for signals in self._signals:
            signals.start(row)
        self.policy.start(row)

    def finish(self, row: int) -> None:
        """The request in `row` has ended; rows of others are left alone."""
        if self._mine[row]:
            self._mine[row] = False
            self.policy.finish(row)

    def decide(self, signals: BatchSignals) -> None:
        """What it would do in the coming round; `signals` are those of the whole batch."""
        positions = np.flatnonzero(self._mine[signals.rows])
        if not len(positions):
            return
        mine = signals.take(positions)
        held = self._lag[:, mine.rows]
        lag = np.where(held < 0, mine.lag[: len(held)], held)
        decision = self.policy.decide(self._numbers.signals(replace(mine, lag=lag)))
        drafter = self._numbers.drafter(decision.drafter)
        depths = np.minimum(decision.depths, mine.limits)
        decision = replace(decision, depths=depths, drafter=drafter)
        self._awaited.put(signals.number, _Pending(positions, decision, lag, mine))

    def learn(self, record: RoundRecord) -> None:
        """What the round it decided for came to."""
        pending = self._awaited.take(record.decision)
        if pending is None:
            return
        positions = places_of(pending.signals.rows, record.rows)
        if positions is None:
            return  # some of its rows did not run
        pending = replace(pending, positions=positions)
        acted = record.take(pending.positions)
        known = Counterfactual.of(acted, pending.decision.drafter, self._depth)
        drafted = known.drafted(pending.decision)
        acceptance = self._acceptance(acted, pending.decision.drafter)
        kept, expected, drawn = known.accepted(drafted, acceptance, self._dice.random(acceptance.shape))
        # A request that ended in this round would have ended with any depth.
        ended = acted.emitted < acted.accepted + 1
        most = np.where(ended, acted.emitted, pending.signals.limits + 1)
        tokens = np.minimum(kept + expected + 1.0, most)
        seconds = self._seconds(record, pending, drafted)
        self._add(record, acted, tokens, tokens - np.minimum(kept + 1.0, most), seconds)
        counts = _Counts(drafted, kept + drawn, np.minimum(kept + drawn + 1, most))
        self.policy.learn(self._numbers.record(_as_if(acted, pending, counts, known, seconds)))
        self._note(acted, pending, drafted)

    def _acceptance(self, acted: RoundRecord, drafter: IntArray) -> FloatArray:
        acceptance: FloatArray = np.zeros((len(acted.rows), self._depth))
        for which in np.unique(drafter).tolist():
            of = drafter == which
            if which < len(self._signals):
                acceptance[of] = self._signals[which].acceptance(acted.rows[of], acted.tasks[of])
        return acceptance

    def _seconds(self, record: RoundRecord, pending: _Pending, drafted: IntArray) -> float:
        """The round's time, had this policy decided for its rows."""
        all_drafted, all_drafters = record.drafted.copy(), record.drafter.copy()
        all_drafted[pending.positions], all_drafters[pending.positions] = drafted, pending.decision.drafter
        change = self._modelled(record, all_drafted, all_drafters)
        change -= self._modelled(record, record.drafted, record.drafter)
        change += self._catching_up(pending.decision.drafter, drafted, pending.lag)
        acted = record.take(pending.positions)
        change -= self._catching_up(acted.drafter, acted.drafted, pending.signals.lag)
        # The table may be wrong by more than a short round takes; time never runs backwards.
        return max(record.total_seconds + change, 0.1 * record.total_seconds)

    def _modelled(self, record: RoundRecord, drafted: IntArray, drafter: IntArray) -> float:
        cost, rows = self._cost, len(record.rows)
        tokens = rows + total(drafted) + record.prefill_tokens
        seconds = cost.overhead_seconds(rows, drafting=some(drafted))
        seconds += cost.verify_seconds(rows, tokens, float(total(record.context)))
        for which in np.unique(drafter[drafted > 0]).tolist():
            per_step, per_row = cost.step_line(self._drafters[which], rows)
            counts = drafted[drafter == which]
            seconds += per_step * int(counts.max()) + per_row * int(counts.sum())
            seconds += cost.start_seconds(self._drafters[which])
        return seconds

    def _catching_up(self, drafter: IntArray, drafted: IntArray, lag: IntArray) -> float:
        drafting = np.flatnonzero(drafted)
        return sum(
            self._cost.catch_up_seconds(self._drafters[which], float(lag[which, i]))
            for which, i in zip(drafter[drafting].tolist(), drafting.tolist(), strict=True)
        )

    def _add(
        self, record: RoundRecord, acted: RoundRecord, tokens: FloatArray, guessed: FloatArray, seconds: float
    ) -> None:
        acting = float(total(record.emitted))
        others = acting - total(acted.emitted)
        new = np.array([others + tokens.sum(), guessed.sum(), seconds, acting, record.total_seconds])
        self._sums = self._sums * _FADE + new
        self._rounds += 1

    def _note(self, acted: RoundRecord, pending: _Pending, drafted: IntArray) -> None:
        """What was really seen, for later estimates, and how far each drafter would be behind now."""
        for which in np.unique(acted.drafter[acted.drafted > 0]).tolist():
            of = np.flatnonzero((acted.drafter == which) & (acted.drafted > 0))
            seen, kept = np.minimum(acted.drafted[of], self._depth), np.minimum(acted.accepted[of], self._depth)
            self._signals[which].observe(acted.rows[of], acted.tasks[of], seen, kept)
        lag = pending.lag + acted.emitted
        drafting = np.flatnonzero(drafted)
        lag[pending.decision.drafter[drafting], drafting] = 0
        self._lag[:, acted.rows] = lag


@dataclass(frozen=True)
class _Pending:
    """A decision that waits for its round: positions among the round's rows, drafters in the engine's numbers."""

    positions: IntArray
    decision: Decision
    lag: IntArray
    signals: BatchSignals


@dataclass(frozen=True)
class _Counts:
    """What a shadow's rows would have drafted, got accepted and emitted. All [B]."""

    drafted: IntArray
    accepted: IntArray
    emitted: IntArray


def _as_if(
    acted: RoundRecord, pending: _Pending, counts: _Counts, known: Counterfactual, seconds: float
) -> RoundRecord:
    """The round as the shadow would have had it."""
    decision, drafted = pending.decision, counts.drafted
    deepest = int(drafted.max(initial=0))
    unknown = np.arange(deepest) >= drafted[:, None]
    agreed, said = _scores_as_if(acted, decision, counts.emitted)
    return replace(
        acted,
        depths=decision.depths,
        reasons=decision.reasons,
        drafter=decision.drafter,
        drafted=drafted,
        accepted=counts.accepted,
        emitted=counts.emitted,
        confidence=np.where(unknown, np.nan, known.confidence[:, :deepest]),
        entropy=np.where(unknown, np.nan, known.entropy[:, :deepest]),
        draft_steps=deepest,
        caught_up=int(pending.lag[decision.drafter, np.arange(len(drafted))][drafted > 0].sum()),
        verify_tokens=acted.verify_tokens + total(drafted) - total(acted.drafted),
        draft_seconds=max(0.0, acted.draft_seconds + seconds - acted.total_seconds),
        total_seconds=seconds,
        provenance=decision.provenance,
        expected=decision.expected,
        shadow=agreed,
        shadow_drafted=said,
        temperature_scores=None,  # of tokens that it might not have drafted
    )


def _scores_as_if(acted: RoundRecord, decision: Decision, emitted: IntArray) -> tuple[IntArray | None, IntArray | None]:
    """What was scored of drafters that the shadow would not have run, as far as its round would have come."""
    agreed, said = acted.shadow, acted.shadow_drafted
    if agreed is None or said is None:
        return None, None
    ran = (np.arange(len(agreed))[:, None] == decision.drafter) & (decision.depths > 0)
    known = (agreed >= 0) & ~ran
    return np.where(known, np.minimum(agreed, emitted), -1), np.where(known, np.minimum(said, emitted), -1)

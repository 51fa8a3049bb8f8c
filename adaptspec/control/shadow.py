"""Policies on trial: they decide beside the one that acts, and what they would have earned is estimated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from adaptspec.control.acceptance import Acceptance
from adaptspec.control.cost import CostTable
from adaptspec.control.policy import BatchSignals, Decision, Pending, Policy
from adaptspec.control.rows import DrafterNumbers, places_of, some, total
from adaptspec.types import BoolArray, FloatArray, IntArray, RoundRecord

# Estimates are over about the last thousand rounds, so that they follow traffic and what has been learned.
_FADE = 0.999


@dataclass(frozen=True)
class Counterfactual:
    """What a round that was run tells of the tokens some drafter would have proposed, per row. All [B] or [B, D].

    The first `seen` of them were compared with what the target wrote, and `kept` of those agreed before the first that
    did not. `open`: all that were seen agreed, and what would have come next is unknown. `most` bounds the draft where
    the drafter had nothing more to say (n-grams without a match). Confidence and entropy are NaN where unknown.
    """

    seen: IntArray
    kept: IntArray
    open: BoolArray
    most: IntArray
    confidence: FloatArray
    entropy: FloatArray

    @classmethod
    def of(cls, record: RoundRecord, drafter: IntArray, deepest: int) -> Counterfactual:
        """Of the drafters [B] in the round's numbers: from what ran, else what was scored; `deepest` is D.

        Of drafts that branched it tells what their main chains had.
        """
        told, main = record.told_of(drafter), record.trunk()
        # Who states no entropy has no distribution, and asks no stop rule: it ends where it has nothing more to say.
        silent = np.isnan(main.entropy).all(axis=1)
        ended = np.where(told.ran, silent & (told.drafted < main.depths), told.drafted < main.emitted)
        ran_out = told.known & ended
        return cls(
            seen=told.drafted,
            kept=told.right,
            open=(told.right == told.drafted) & ~ran_out,
            most=np.where(ran_out, told.drafted, np.iinfo(np.int64).max),
            confidence=_widened(main.confidence, told.ran & ~silent, deepest),
            entropy=_widened(main.entropy, told.ran, deepest),
        )

    def drafted(self, decision: Decision) -> IntArray:
        """Tokens [B] that would have been drafted under a decision, its stop rule heeded."""
        asked = np.minimum(decision.depths, self.most)
        if decision.stop is None:
            return asked
        drafted = np.zeros_like(asked)
        active, step = np.flatnonzero(asked), 0
        stop = decision.stop.begin(active)
        while len(active):
            drafted[active] += 1
            sure, entropy = self.confidence[active, step], self.entropy[active, step]
            step += 1
            going = asked[active] > step
            if going.any():
                going &= stop(step, active, sure, entropy)
            active = active[going]
        return drafted

    def accepted(
        self, drafted: IntArray, acceptance: FloatArray, dice: FloatArray
    ) -> tuple[IntArray, FloatArray, IntArray]:
        """Of so many drafted tokens: how many surely, how many more expected, and how many more by a throw of `dice`.

        `acceptance` [B, D] is conditional, by position; `dice` [B, D] in [0, 1).
        """
        surely = np.minimum(self.kept, drafted)
        positions = np.arange(acceptance.shape[1])
        beyond = self.open[:, None] & (positions >= self.seen[:, None]) & (positions < drafted[:, None])
        survival = np.cumprod(np.where(beyond, acceptance, 1.0), axis=1)
        held = np.cumprod(np.where(beyond, dice < acceptance, True), axis=1)
        return surely, (survival * beyond).sum(axis=1), (held * beyond).sum(axis=1)


def _widened(values: FloatArray, known: BoolArray, deepest: int) -> FloatArray:
    """[B, D], NaN where unknown."""
    wide: FloatArray = np.full((len(values), deepest), np.nan)
    width = min(deepest, values.shape[1])
    wide[known, :width] = values[known, :width]
    return wide


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
    Drafts count as chains; a tree is told of only where the policy that acts branched with the same drafter, and then
    taken to be the one that ran, cut to the shadow's depth.
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
        rows: int,
        *,
        cost: CostTable,
        tasks: int,
    ) -> None:
        """`drafters` are the engine's; `tasks` counts the known tasks and task 0, unknown."""
        self.name, self.policy, self.against = name, policy, against
        self._cost, self._drafters = cost, tuple(drafters)
        self._numbers = DrafterNumbers(policy.wanted, drafters)
        self.watched = self._numbers.watched  # the engine's numbers of its drafters
        self._depth = max(1, policy.max_depth)
        self._signals = [Acceptance(rows, tasks, self._depth) for _ in drafters]
        self._mine: BoolArray = np.zeros(rows, dtype=np.bool_)
        self._cache_gap: IntArray = np.full((len(drafters), rows), -1, dtype=np.int64)
        self._pending: Pending[_Decided] = Pending()
        self._dice = np.random.default_rng(0)
        self._rounds = 0
        self._sums: FloatArray = np.zeros(5)  # its tokens, guessed ones, its seconds, acting tokens, acting seconds

    @property
    def estimate(self) -> ShadowEstimate:
        """What it would have earned so far; may be asked from any thread."""
        tokens, guessed, seconds, acting_tokens, acting_seconds = self._sums.tolist()
        ratio = tokens * acting_seconds / (seconds * acting_tokens) if seconds * acting_tokens else 1.0
        return ShadowEstimate(self.name, self.against, self._rounds, ratio, guessed / tokens if tokens else 0.0)

    def start(self, row: int) -> None:
        """A request of the policy it watches begins decoding in `row`."""
        self._mine[row] = True
        self._cache_gap[:, row] = -1
        for signals in self._signals:
            signals.start(row)
        self.policy.start(row)

    def finish(self, row: int) -> None:
        """The request in `row` has ended; rows of others are left alone."""
        if self._mine[row]:
            self._mine[row] = False
            self.policy.finish(row)

    def decide(self, signals: BatchSignals) -> None:
        positions = np.flatnonzero(self._mine[signals.rows])
        if not len(positions):
            return
        mine = signals.take(positions)
        held = self._cache_gap[:, mine.rows]
        cache_gap = np.where(held < 0, mine.cache_gap[: len(held)], held)
        decision = self.policy.decide(self._numbers.signals(replace(mine, cache_gap=cache_gap)))
        depths = np.minimum(decision.depths, mine.limits)
        decision = replace(decision, depths=depths, drafter=self._numbers.drafter(decision.drafter))
        self._pending.put(signals.number, _Decided(decision, cache_gap, mine))

    def learn(self, record: RoundRecord) -> None:
        decided = self._pending.take(record.decision)
        at = None if decided is None else places_of(decided.signals.rows, record.rows)
        if decided is None or at is None:
            return  # nothing was decided, or some of its rows did not run
        acted, decision = record.take(at), decided.decision
        known = Counterfactual.of(acted, decision.drafter, self._depth)
        drafted = known.drafted(decision)
        acceptance = np.zeros((len(at), self._depth))
        for which, signals in enumerate(self._signals):
            of = decision.drafter == which
            acceptance[of] = signals.acceptance(acted.rows[of], acted.tasks[of])
        kept, expected, drawn = known.accepted(drafted, acceptance, self._dice.random(acceptance.shape))
        # A request that ended in this round would have ended with any depth.
        ended = acted.emitted < acted.accepted + 1
        most = np.where(ended, acted.emitted, decided.signals.limits + 1)
        wide = _branched_alike(acted, decision)
        kept_wide, expected = np.where(wide, np.minimum(acted.accepted, drafted), kept), np.where(wide, 0.0, expected)
        tokens = np.minimum(kept_wide + expected + 1.0, most)
        guessed = tokens - np.minimum(kept_wide + 1.0, most)
        nodes = np.where(wide, np.maximum(acted.nodes, drafted), drafted)
        seconds = self._seconds(record, at, decided, (drafted, nodes))
        acting = float(total(record.emitted))
        others = acting - total(acted.emitted)
        new = np.array([others + tokens.sum(), guessed.sum(), seconds, acting, record.total_seconds])
        self._sums = self._sums * _FADE + new
        self._rounds += 1
        own = drafted, kept + drawn, np.minimum(kept + drawn + 1, most)
        self.policy.learn(self._numbers.record(_as_if(acted, decided, known, own, seconds)))
        self._note(acted, decided, drafted)

    def _seconds(
        self, record: RoundRecord, at: IntArray, decided: _Decided, tokens: tuple[IntArray, IntArray]
    ) -> float:
        """The round's time, had this policy decided for its rows, which stand `at` [B] among the round's, and drafted
        chains of so many tokens of so many nodes [B].
        """
        all_drafted, all_nodes, all_drafters = record.chain.copy(), record.nodes.copy(), record.drafter.copy()
        (all_drafted[at], all_nodes[at]), all_drafters[at] = tokens, decided.decision.drafter
        own, acting = np.zeros((2, len(self._drafters), len(record.rows)))
        own[:, at], acting[:, at] = decided.cache_gap, decided.signals.cache_gap[: len(acting)]
        change = self._modelled(record, all_drafted, all_nodes, all_drafters, own)
        change -= self._modelled(record, record.chain, record.nodes, record.drafter, acting)
        # The table may be wrong by more than a short round takes; time never runs backwards.
        return max(record.total_seconds + change, 0.1 * record.total_seconds)

    def _modelled(
        self, record: RoundRecord, drafted: IntArray, nodes: IntArray, drafter: IntArray, gap: FloatArray
    ) -> float:
        """What the cost table has the round take at these drafts [B]; rows that draft catch up `gap` [drafters, B]."""
        cost, rows = self._cost, len(record.rows)
        tokens = rows + total(nodes) + record.prefill_tokens
        seconds = cost.overhead_seconds(rows, drafting=some(drafted))
        seconds += cost.verify_seconds(rows, tokens, float(total(record.context)))
        for which in np.unique(drafter[drafted > 0]).tolist():
            name, drafting = self._drafters[which], (drafter == which) & (drafted > 0)
            per_step, per_row = cost.step_line(name, rows)
            counts = drafted[drafting]
            seconds += cost.start_seconds(name, rows) + per_step * int(counts.max()) + per_row * int(counts.sum())
            seconds += cost.catch_up_seconds(name, float(gap[which, drafting].sum()))
        return seconds

    def _note(self, acted: RoundRecord, decided: _Decided, drafted: IntArray) -> None:
        """What was really seen, for later estimates, and how far each drafter would be behind now."""
        main = acted.trunk()
        for which in np.unique(main.drafter[main.drafted > 0]).tolist():
            of = np.flatnonzero((main.drafter == which) & (main.drafted > 0))
            seen, kept = np.minimum(main.drafted[of], self._depth), np.minimum(main.accepted[of], self._depth)
            self._signals[which].observe(acted.rows[of], acted.tasks[of], seen, kept)
        held = self._cache_gap[:, acted.rows]  # a later round may be decided already, which has not reckoned with this
        cache_gap = np.where(held < 0, decided.cache_gap, held) + acted.emitted
        drafting = np.flatnonzero(drafted)
        cache_gap[decided.decision.drafter[drafting], drafting] = 0
        self._cache_gap[:, acted.rows] = cache_gap


class _Decided(NamedTuple):
    """A decision that waits for its round, in the engine's numbers, with what it saw and its own cache gap."""

    decision: Decision
    cache_gap: IntArray
    signals: BatchSignals


def _branched_alike(acted: RoundRecord, decision: Decision) -> BoolArray:
    """Rows [B] that branched with the drafter that a decision has branch there, too."""
    if acted.branches is None or decision.tree is None:
        return np.zeros(len(acted.rows), dtype=np.bool_)
    branched = (acted.nodes > acted.chain) & (decision.tree.width > 1) & (decision.depths > 0)
    return np.asarray(branched & (acted.drafter == decision.drafter))


def _as_if(
    acted: RoundRecord, decided: _Decided, known: Counterfactual, tokens: tuple[IntArray, ...], seconds: float
) -> RoundRecord:
    """The round as the shadow would have had it: tokens [B] that its rows would have drafted, got and emitted."""
    decision, (drafted, accepted, emitted) = decided.decision, tokens
    deepest = int(drafted.max(initial=0))
    unknown = np.arange(deepest) >= drafted[:, None]
    agreed, said = acted.shadow, acted.shadow_drafted
    if agreed is not None and said is not None:
        # What was scored of drafters that it would not have run, as far as its round would have come.
        ran = (np.arange(len(agreed))[:, None] == decision.drafter) & (decision.depths > 0)
        scored = (agreed >= 0) & ~ran
        agreed, said = (np.where(scored, np.minimum(seen, emitted), -1) for seen in (agreed, said))
    return replace(
        acted,
        depths=decision.depths,
        reasons=decision.reasons,
        drafter=decision.drafter,
        drafted=drafted,
        accepted=accepted,
        emitted=emitted,
        confidence=np.where(unknown, np.nan, known.confidence[:, :deepest]),
        entropy=np.where(unknown, np.nan, known.entropy[:, :deepest]),
        draft_steps=deepest,
        caught_up=int(decided.cache_gap[decision.drafter, np.arange(len(drafted))][drafted > 0].sum()),
        verify_tokens=acted.verify_tokens + total(drafted) - total(acted.nodes),
        draft_seconds=max(0.0, acted.draft_seconds + seconds - acted.total_seconds),
        total_seconds=seconds,
        provenance=decision.provenance,
        expected=decision.expected,
        shadow=agreed,
        shadow_drafted=said,
        temperature_scores=None,  # of tokens that it might not have drafted
        branches=None,  # it learns of what chains would have had
    )

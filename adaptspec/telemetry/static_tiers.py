"""What every fixed depth would have taken for the text that was served: the references that a policy is judged by.

Knows rounds as numbers, and what rounds cost; it does not know who decided them, nor who shows the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from adaptspec.control.acceptance import Acceptance
from adaptspec.control.cost import CostTable
from adaptspec.control.counterfactual import Counterfactual
from adaptspec.telemetry.lots import together
from adaptspec.types import BoolArray, FloatArray, IntArray, RoundRecord

TIERS = (1, 2, 3, 5, 7)
# A drafter that was seen at work, or scored, in fewer row-rounds says nothing of its tiers.
KNOWN_FROM = 64
# What a round takes beyond this many times what the table says is the machine's doing: it would hit any tier.
_HICCUP = 2.0
_FADE = 0.999  # per round: how fast what the table gets wrong is forgotten
_ENOUGH = 16  # rounds of a kind before they correct the table


@dataclass(frozen=True)
class StaticTier:
    """A fixed way to run: a depth, and who drafts (None: nobody, plain decoding)."""

    depth: int
    drafter: str | None = None

    def __str__(self) -> str:
        return "off" if self.drafter is None else f"{self.drafter} at {self.depth}"


class StaticTiers:
    """Seconds that the emitted text would have taken at each tier.

    A round run at depth d that had a tokens accepted before one was rejected tells exactly how many rounds of a depth
    k <= d its text takes: ceil((a + 1) / (k + 1)); without a rejection, (a + 1) / (k + 1). At larger depths, and for
    drafters that did not run, a round gets as far as what was scored of them says, and beyond that as far as is
    expected by the acceptance seen so far, by row, task and position. Plain decoding takes a round per token.

    Seconds of a round at a tier are those that the cost table gives it, corrected by what rounds of its kind (plain, or
    of its drafter; else all) were measured to take of late at its batch size. Hiccups, a tier would have had as well.
    """

    def __init__(
        self, costs: CostTable, drafters: Sequence[str], max_rows: int, tasks: int, tiers: Sequence[int] = TIERS
    ) -> None:
        """`drafters` are the engine's; `tasks` counts the known tasks and task 0, unknown."""
        self._costs = costs
        self._drafters = tuple(drafters)
        self._depths: IntArray = np.array(tiers, dtype=np.int64)
        self.tiers = (
            StaticTier(0),
            *(StaticTier(depth, drafter) for drafter in self._drafters for depth in self._depths.tolist()),
        )
        deepest = int(self._depths.max())
        self._signals = [Acceptance(max_rows, tasks, deepest) for _ in self._drafters]
        self.observed = [0] * len(self._drafters)  # row-rounds of each drafter
        self.seconds: FloatArray = np.zeros(len(self.tiers))
        self.guessed: FloatArray = np.zeros(len(self.tiers))  # tokens that nothing observed vouches for
        self.measured = 0.0
        self.tokens = 0
        self._pace = _Pace()
        self._paces = [_Pace() for _ in (None, *self._drafters)]  # of plain rounds, and of each drafter's
        self._paces_at: dict[tuple[int, int], _Pace] = {}  # the same, each batch size by itself

    @property
    def per_drafter(self) -> int:
        """How many tiers each drafter has."""
        return len(self._depths)

    def start(self, row: int, task: int, prompt_tokens: int) -> None:
        """A request begins in `row`. A draft model that always drafts reads its prompt once."""
        for which, (drafter, signals) in enumerate(zip(self._drafters, self._signals, strict=True)):
            signals.start(row, task)
            self.seconds[self._columns(which)] += self._costs.catch_up_seconds(drafter, prompt_tokens)

    def add(self, records: Sequence[RoundRecord], rows: IntArray) -> None:
        """Rounds in order; `rows` [N] are their requests' own. Those that read prompts teach, but are not compared."""
        whole = together(records, rows)
        # Those that read a prompt as well count as rounds of no rows: nobody compares them.
        lengths = [len(record.rows) for record in records]
        sizes = np.repeat([0 if r.prefill_tokens else len(r.rows) for r in records], lengths)
        for size in set(sizes.tolist()) - {0}:
            alike = [record for record in records if len(record.rows) == size and not record.prefill_tokens]
            index = np.flatnonzero(sizes == size)
            self._compare(whole if len(index) == len(sizes) else whole.take(index), alike, size)
        self._learn(whole)

    def _compare(self, rows: RoundRecord, records: Sequence[RoundRecord], size: int) -> None:
        """Rounds of `size` rows each: one after the other in `rows`."""
        context = float(rows.context.sum()) / len(records)
        measured: FloatArray = np.array([record.total_seconds for record in records])
        modelled = self._as_run(rows, records, size, context)
        hiccups = np.maximum(measured - _HICCUP * modelled, 0.0)
        # A round that only caught up is neither plain nor one with drafts.
        reading: BoolArray = np.array([record.draft_steps + record.caught_up > 0 for record in records])
        clear = np.flatnonzero((rows.drafted.reshape(-1, size) > 0).any(axis=1) | ~reading)
        self._note_paces(size, _kinds(rows, size)[clear], (measured - hiccups)[clear], modelled[clear])
        plain_rounds, plain = rows.emitted.sum() / size, self._costs.plain_seconds(size, context)
        self.seconds += float(hiccups.sum())
        self.seconds[0] += float(plain_rounds) * plain * self._ratio(0, size)
        for which, drafter in enumerate(self._drafters):
            took = self._rounds(which, rows)
            drafted = took.drafted.reshape(-1, size, len(self._depths))
            seconds = self._costs.round_seconds(drafter, size, drafted.max(axis=1), drafted.sum(axis=1), context)
            rounds = took.rounds.reshape(drafted.shape).mean(axis=1)  # each of all rows
            columns = self._columns(which)
            self.seconds[columns] += (rounds * seconds).sum(axis=0) * self._ratio(1 + which, size)
            self.guessed[columns] += took.guessed
        self.measured += float(measured.sum())
        self.tokens += int(rows.emitted.sum())

    def _rounds(self, which: int, rows: RoundRecord) -> _Rounds:
        """How many rounds of each tier of a drafter the rows' [N] tokens take."""
        emitted = rows.emitted[:, None]
        deepest = int(self._depths.max())
        known = Counterfactual.of(rows, np.full(len(rows.rows), which, dtype=np.int64), deepest)
        ran = (rows.drafter == which) & (rows.depths > 0)
        ended = rows.emitted < rows.accepted + 1
        certain = ran & (ended | ~known.open)
        kept = np.where(ended, np.minimum(known.kept, rows.emitted - 1), known.kept)
        positions = np.arange(deepest)
        beyond = (known.open & ~certain)[:, None] & (positions >= known.seen[:, None])
        beyond &= positions < known.most[:, None]
        survival = np.where(beyond, self._signals[which].acceptance(rows.rows), 1.0).cumprod(axis=1)
        guesses = np.where(beyond, survival, 0.0).cumsum(axis=1)[:, self._depths - 1]
        tokens = 1.0 + np.minimum(kept[:, None], self._depths) + guesses
        tokens = np.where(ended[:, None], np.minimum(tokens, emitted), tokens)
        rounds = emitted / tokens
        rounds = np.where(certain[:, None], np.ceil(rounds), rounds)
        drafted = np.minimum(self._depths, known.most[:, None])
        return _Rounds(rounds, drafted.astype(np.float64), (guesses * rounds).sum(axis=0))

    def _as_run(self, rows: RoundRecord, records: Sequence[RoundRecord], size: int, context: float) -> FloatArray:
        """What the cost table says of the rounds as they were run, in seconds [R]."""
        costs = self._costs
        drafted, drafter = rows.drafted.reshape(-1, size), rows.drafter.reshape(-1, size)
        drafting, plain = (costs.overhead_seconds(size, drafting=on) for on in (True, False))
        seconds = np.where(drafted.any(axis=1), drafting, plain)
        seconds = seconds + costs.verify_curve(size, size + drafted.sum(axis=1).astype(np.float64), context)
        caught_up: IntArray = np.array([r.caught_up for r in records])
        for which, name in enumerate(self._drafters):
            own = np.where(drafter == which, drafted, 0)
            ran = own.any(axis=1)
            per_step, per_row = costs.step_line(name, size)
            begun = np.where(ran, costs.start_seconds(name), 0.0) + costs.catch_up_seconds(name, 1.0) * caught_up
            seconds = seconds + per_step * own.max(axis=1) + per_row * own.sum(axis=1) + begun
        return np.asarray(seconds, dtype=np.float64)

    def _note_paces(self, size: int, kinds: IntArray, measured: FloatArray, modelled: FloatArray) -> None:
        self._pace.add(measured, modelled)
        for which, pace in enumerate(self._paces):
            here = kinds == which
            for one in (pace, self._paces_at.setdefault((which, size), _Pace())):
                one.add(measured[here], modelled[here])

    def _ratio(self, kind: int, size: int) -> float:
        """What a kind of round takes at a batch size over what the table says.

        Where few were run: at all sizes; where few were run at any: as all kinds do.
        """
        for pace in (self._paces_at[kind, size], self._paces[kind]):
            if pace.rounds >= _ENOUGH:
                return pace.ratio
        return self._pace.ratio

    def _learn(self, rows: RoundRecord) -> None:
        for which, signals in enumerate(self._signals):
            ran = (rows.drafter == which) & (rows.depths > 0)
            seen, kept = np.where(ran, rows.drafted, 0), np.where(ran, rows.accepted, 0)
            if rows.shadow is not None and rows.shadow_drafted is not None:
                scored = ~ran & (rows.shadow[which] >= 0)
                seen = np.where(scored, rows.shadow_drafted[which], seen)
                kept = np.where(scored, rows.shadow[which], kept)
                ran = ran | scored
            deepest = int(self._depths.max())
            signals.observe(rows.rows, np.minimum(seen, deepest), np.minimum(kept, deepest))
            self.observed[which] += int(np.count_nonzero(ran))

    def _columns(self, which: int) -> slice:
        first = 1 + which * len(self._depths)
        return slice(first, first + len(self._depths))


def _kinds(rows: RoundRecord, size: int) -> IntArray:
    """Of each round [R]: 0 plain, 1 and up the one drafter that all its drafts are of, -1 several."""
    drafted = rows.drafted.reshape(-1, size) > 0
    used = np.where(drafted, 1 + rows.drafter.reshape(-1, size), 0)
    kinds = used.max(axis=1)
    return np.where((drafted & (used != kinds[:, None])).any(axis=1), -1, kinds)


class _Pace:
    """Measured over modelled seconds of rounds of one kind."""

    def __init__(self) -> None:
        self._measured = 0.0
        self._modelled = 0.0
        self.rounds = 0

    @property
    def ratio(self) -> float:
        """1 before anything was seen."""
        return self._measured / self._modelled if self._modelled else 1.0

    def add(self, measured: FloatArray, modelled: FloatArray) -> None:
        """Some more rounds; within a lot none is older than another."""
        fade = _FADE ** len(measured)
        self._measured = fade * self._measured + float(measured.sum())
        self._modelled = fade * self._modelled + float(modelled.sum())
        self.rounds += len(measured)


@dataclass(frozen=True)
class _Rounds:
    """Of each tier: rounds [N, tiers] that N rows take, tokens drafted in the first of them; guessed tokens [tiers]."""

    rounds: FloatArray
    drafted: FloatArray
    guessed: FloatArray

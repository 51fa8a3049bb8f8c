"""What every fixed depth would have taken for the text that was served: the references that a policy is judged by.

Rounds of fixed depths follow from tokens that were observed; what they take, from rounds that were run.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from adaptspec.arrays import BoolArray, FloatArray, IntArray
from adaptspec.control.acceptance import Acceptance
from adaptspec.control.cost_model import batch_bucket
from adaptspec.rounds import RoundRecord
from adaptspec.telemetry.counterfactual import Counterfactual
from adaptspec.telemetry.round_seconds import RoundSeconds, drafted_in, features
from adaptspec.telemetry.totals import gathered

TIERS = (1, 2, 3, 5, 7)
_DEPTHS, _DEEPEST = np.array(TIERS), max(TIERS)
# A drafter that was seen at work, or scored, in fewer row-rounds says nothing of its tiers.
KNOWN_FROM = 64
# Plain decoding is known from so many plain rounds on, and any tier where the ratio of its seconds to those of the
# rounds that ran is known this well.
_PLAIN_FROM, _KNOWN_WITHIN = 3, 0.25
# Where more of its text than this is guessed, a tier is no reference.
_MOST_GUESSED = 0.5
_PER_ROW = ("depths", "reasons", "drafter", "drafted", "accepted", "emitted", "context")
# Sums for each tier: its seconds, those of the rounds it is compared with, tokens, and those guessed.
_SUMS = ("seconds", "against", "tokens", "guessed")


@dataclass(frozen=True)
class StaticTier:
    """A fixed way to run: a depth, and who drafts (None: nobody, plain decoding)."""

    depth: int
    drafter: str | None = None

    def __str__(self) -> str:
        return "off" if self.drafter is None else f"{self.drafter} at {self.depth}"


@dataclass(frozen=True)
class TierEarnings:
    """A fixed depth: `seconds` that it would take for `tokens` that rounds of `against` seconds emitted.

    Both are predictions of one model: of the tier's rounds, and of the rounds that ran. So a machine that becomes
    faster or slower changes both, a pause of the machine in a round changes neither, and where nothing was drafted the
    two are equal. `error` is twice the standard error of the seconds, and the time of the `guessed` share of the
    tokens, for which there is no observation. Only rounds of batch sizes at which the ratio is known are among them.
    """

    tier: StaticTier
    seconds: float = 0.0
    against: float = 0.0
    error: float = 0.0
    tokens: int = 0
    guessed: float = 0.0
    observed: bool = True  # its drafter was, often enough

    @property
    def known(self) -> bool:
        return self.observed and self.against > 0.0 and self.guessed <= _MOST_GUESSED


class StaticTiers:
    """Seconds that the emitted text would have taken at each tier.

    A round run at depth d that had a tokens accepted before one was rejected says exactly how many rounds of a depth
    k <= d its text takes: ceil((a + 1) / (k + 1)); without a rejection, (a + 1) / (k + 1). At larger depths, and for
    drafters that did not run, a round gets as far as their `Counterfactual` is known, and beyond that as far as is
    expected by the acceptance seen so far, by row, task and position. Plain decoding takes a round per token. Fixed
    depths draft chains: of a round that branched the main chains count, and tokens emitted after these had failed take
    rounds of the expected length.

    Rounds at a tier and the rounds that ran are priced by one model of measured rounds of their batch bucket
    (`RoundSeconds`). What cannot be priced yet waits until enough rounds have run: plain ones, ones as deep.
    """

    def __init__(self, drafters: Sequence[str], max_rows: int, tasks: int, reading: Collection[str] = ()) -> None:
        """`drafters` are the engine's, of which those `reading` read prompts; `tasks` counts also task 0, unknown."""
        self._drafters = tuple(drafters)
        self._reads = np.array([name in reading for name in self._drafters], dtype=np.float64)
        self._tiers = (
            StaticTier(0),
            *(StaticTier(depth, drafter) for drafter in self._drafters for depth in TIERS),
        )
        self._signals = [Acceptance(max_rows, tasks, _DEEPEST) for _ in self._drafters]
        self.observed = [0] * len(self._drafters)  # row-rounds of each drafter
        self._unread = [0.0] * len(self._drafters)  # prompt tokens that each would have to read
        self._known: FloatArray = np.zeros((len(self._tiers), len(_SUMS)))
        self._error: FloatArray = np.zeros(len(self._tiers))
        self._buckets: dict[int, _Bucket] = {}
        self._declined: BoolArray = np.zeros(max_rows, dtype=np.bool_)

    @property
    def earnings(self) -> tuple[TierEarnings, ...]:
        seen = (True, *(n >= KNOWN_FROM for n in self.observed for _ in TIERS))
        return tuple(
            TierEarnings(tier, seconds, against, error, int(tokens), guessed / max(tokens, 1.0), sure)
            for tier, (seconds, against, tokens, guessed), error, sure in zip(
                self._tiers, self._known.tolist(), self._error.tolist(), seen, strict=True
            )
        )

    def start(self, row: int, prompt_tokens: int, *, declined: bool = False) -> None:
        """A request begins in `row`; `declined`: it asked for no speculation.

        A draft model that always drafts reads its prompt once.
        """
        self._declined[row] = declined
        if declined:
            prompt_tokens = 0
        for which, signals in enumerate(self._signals):
            signals.start(row)
            self._unread[which] += prompt_tokens * float(self._reads[which])

    def add(self, records: Sequence[RoundRecord], rows: IntArray) -> None:
        """Learn from rounds in order; `rows` [N] are their requests' own.

        Rounds that read prompts are not compared with tiers, and neither are those whose requests all declined
        speculation: there was nothing to decide.
        """
        whole = together(records, rows)
        lengths = np.array([len(record.rows) for record in records], dtype=np.int64)
        sizes = np.where([record.prefill_tokens > 0 for record in records], 0, lengths)
        declined = np.minimum.reduceat(self._declined[rows], np.cumsum(lengths) - lengths)
        for size in set(sizes.tolist()) - {0}:
            alike = np.flatnonzero(sizes == size)
            bucket, more = self._bucket(size)
            part = whole.take(np.flatnonzero(np.repeat(sizes == size, lengths)))
            ran = self._as_run(part, [records[i] for i in alike.tolist()], size, more)
            measured = np.array([records[i].timing.total for i in alike.tolist()], dtype=np.float64)
            bucket.fit.add(ran, measured)
            compared = ~declined[alike]
            if compared.any():
                part = part.take(np.flatnonzero(np.repeat(compared, size)))
                self._compare(bucket, part, ran[compared], more)
        self._learn(whole)

    def _bucket(self, size: int) -> tuple[_Bucket, float]:
        """The bucket of rounds of `size` rows, and their rows beyond the smallest of the bucket, over that."""
        which = batch_bucket(size)
        bucket = self._buckets.setdefault(which, _Bucket(len(self._tiers), len(self._drafters)))
        return bucket, size / (1 + 2 ** (which - 1) if which else 1) - 1.0

    def _compare(self, bucket: _Bucket, rows: RoundRecord, ran: FloatArray, more: float) -> None:
        """Rounds of one size, one after the other in `rows`, and their features `ran` [R, F]."""
        size = len(rows.rows) // len(ran)
        bucket.ran += ran.sum(axis=0)
        bucket.waiting += [rows.emitted.sum(), 0.0]
        nothing = np.zeros(len(self._drafters))
        plain = features(more, nothing, nothing, nothing)
        # A round that drafted nothing is a plain round, whatever it emitted.
        speculated = drafted_in(ran)
        emitted = rows.emitted.reshape(-1, size).sum(axis=1)
        bucket.work[0] += ran[~speculated].sum(axis=0) + emitted[speculated].sum() / size * plain
        for drafter in range(len(self._drafters)):
            took = self._rounds(drafter, rows)
            drafted = took.drafted.reshape(-1, size, len(TIERS))
            rounds = took.rounds.reshape(drafted.shape).mean(axis=1)  # each of all rows
            only = np.eye(len(self._drafters))[drafter]
            drafts, steps = (one[..., None] * only for one in (drafted.mean(axis=1), drafted.max(axis=1)))
            columns, work = self._columns(drafter), features(more, drafts, steps, 0.0 * drafts)
            bucket.work[columns] += (rounds[..., None] * work).sum(axis=0)
            # Reading what is new of prompts belongs to the rounds that follow.
            read = features(more, nothing, nothing, only) - plain
            bucket.work[columns] += self._unread[drafter] * read
            self._unread[drafter] = 0.0
            bucket.waiting[columns, -1] += took.guessed
        bucket.settle(self._known, self._error)

    def _rounds(self, which: int, rows: RoundRecord) -> _Rounds:
        """How many rounds of each tier of a drafter the rows' [N] tokens take."""
        emitted, accepted = rows.emitted[:, None], rows.accepted[:, None]
        known = Counterfactual.of(rows, which)
        usual = self._signals[which].acceptance(rows.rows, rows.tasks)
        kept, guesses = known.accepted(_DEPTHS, usual)
        tokens = 1.0 + kept + guesses
        tokens = np.where(emitted <= accepted, np.minimum(tokens, emitted), tokens)
        of_chain = np.where((emitted > accepted + 1) & known.ran[:, None], accepted + 1, emitted)
        rounds = of_chain / np.maximum(tokens, 1.0)  # a row that failed emits nothing
        rounds = np.where((known.ran & ~known.open_end)[:, None], np.ceil(rounds), rounds)
        guessed = (guesses * rounds).sum(axis=0)
        after = emitted - of_chain  # the main chain had failed, and a side node had not
        if after.any():
            rounds += after / (1.0 + usual.cumprod(axis=1).cumsum(axis=1)[:, _DEPTHS - 1])
            guessed += after.sum()
        drafted = np.minimum(_DEPTHS, known.available[:, None])
        return _Rounds(rounds, drafted.astype(np.float64), guessed)

    def _as_run(self, rows: RoundRecord, records: Sequence[RoundRecord], size: int, more: float) -> FloatArray:
        """Features of the rounds as they were run [R, F]."""
        ran = rows.drafter.reshape(-1, size, 1) == np.arange(len(self._drafters))
        own = np.where(ran, rows.drafted.reshape(-1, size, 1), 0)
        read = np.array([record.caught_up for record in records])[:, None] * self._reads
        side_tokens = np.array([0 if r.branches is None else (r.nodes - r.chain).sum() for r in records]) / size
        return features(more, own.mean(axis=1), own.max(axis=1), read, side_tokens)

    def _learn(self, rows: RoundRecord) -> None:
        for which, signals in enumerate(self._signals):
            chains = rows.chains(which)
            drafted, accepted = np.minimum(chains.drafted, _DEEPEST), np.minimum(chains.accepted, _DEEPEST)
            signals.observe(rows.rows, rows.tasks, drafted, accepted)
            self.observed[which] += int(np.count_nonzero(chains.known))

    def _columns(self, which: int) -> slice:
        first = 1 + which * len(TIERS)
        return slice(first, first + len(TIERS))


class _Bucket:
    """Rounds of like batch sizes, and what waits to be priced by them."""

    def __init__(self, tiers: int, drafters: int) -> None:
        self.fit = RoundSeconds(drafters)
        self.work: FloatArray = np.zeros((tiers, self.fit.width))
        self.ran: FloatArray = np.zeros((tiers, self.fit.width))  # the rounds that ran
        self.waiting: FloatArray = np.zeros((tiers, 2))  # tokens, and those guessed

    def settle(self, known: FloatArray, error: FloatArray) -> None:
        """Add what can be priced by now to `known` [tiers, sums] and `error` [tiers]."""
        if self.fit.plain < _PLAIN_FROM:
            return
        for tier, (work, ran) in enumerate(zip(self.work, self.ran, strict=True)):
            ratio, unsure = self.fit.ratio(work, ran)
            tokens, guessed = self.waiting[tier].tolist()
            if unsure <= _KNOWN_WITHIN * ratio and ran.any():
                against = self.fit.seconds(ran)
                known[tier] += [against * ratio, against, tokens, guessed]
                error[tier] += against * (unsure + ratio * guessed / max(tokens, 1.0))
                self.work[tier] = self.ran[tier] = self.waiting[tier] = 0.0


@dataclass(frozen=True)
class _Rounds:
    """Of each tier: rounds [N, tiers] that N rows take, tokens drafted in the first of them; guessed tokens [tiers]."""

    rounds: FloatArray
    drafted: FloatArray
    guessed: FloatArray


def together(records: Sequence[RoundRecord], rows: IntArray) -> RoundRecord:
    """Rounds as one of many `rows` [N], by their main chains. Of confidence and entropy the first column is kept.

    Who they belong to is left out, and what whole rounds cost is left as it was in the first.
    """
    records = [record.main_chains() for record in records]
    return replace(
        records[0],
        request_ids=("",) * len(rows),
        rows=rows,
        confidence=np.concatenate([_first_token(record.confidence) for record in records]),
        entropy=np.concatenate([_first_token(record.entropy) for record in records]),
        tasks=np.concatenate([r.tasks if len(r.tasks) else np.zeros_like(r.rows) for r in records]),
        running=None,
        expected=None,
        shadow=_scores("shadow", records),
        shadow_drafted=_scores("shadow_drafted", records),
        stated=None,
        **{name: gathered(records, name) for name in _PER_ROW},  # type: ignore[arg-type]
    )


def _first_token(stated: FloatArray) -> FloatArray:
    """What was stated of the first drafted token [B, 1], from [B, D]."""
    return stated[:, :1] if stated.shape[1] else np.full((len(stated), 1), np.nan)


def _scores(name: str, records: Sequence[RoundRecord]) -> IntArray | None:
    """[drafters, N], -1 where a round has none; None where no round has."""
    scores: list[IntArray | None] = [getattr(record, name) for record in records]
    count = next((len(score) for score in scores if score is not None), None)
    if count is None:
        return None
    missing = (np.full((count, len(record.rows)), -1) for record in records)
    return np.concatenate([no if score is None else score for score, no in zip(scores, missing, strict=True)], axis=1)

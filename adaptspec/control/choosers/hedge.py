"""Which drafter: full-information hedge over drafters, each with its own acceptance and its own best depths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from adaptspec.control.choosers.as_played import as_played, plays
from adaptspec.control.choosers.chooser import Choice, Chooser, Outlook, Parts
from adaptspec.control.choosers.experts import FixedShare
from adaptspec.control.choosers.goodput import Goodput, GoodputSettings, PriorSpec
from adaptspec.control.choosers.prospects import Prospects
from adaptspec.control.choosers.tryouts import Allowance
from adaptspec.control.cost import CostTable
from adaptspec.control.learned import sums, under
from adaptspec.control.policy import BatchSignals
from adaptspec.control.schema import Part
from adaptspec.control.signals import Calibration, SignalSettings
from adaptspec.types import FloatArray, IntArray, Provenance, Reason, RoundRecord

Scope = Literal["request", "task", "global"]


@dataclass(frozen=True)
class HedgeSettings:
    """`rate` and `share`: see `FixedShare`. `dwell`: rounds between draws. `tryouts`: share of time that may be lost on

    trying drafters of which nothing else is known.
    """

    drafters: tuple[str, ...] = ("draft-model", "ngram")
    tiers: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7)
    scope: Scope = "request"
    rate: float = 0.5
    share: float = 0.01
    dwell: int = 8
    tryouts: float = 0.02
    signals: SignalSettings = field(default_factory=SignalSettings)
    stops: bool = False
    seed: int = 0


class Hedge:
    """Draw drafter d with probability w_d among those that would draft, then let its own goodput choose the depths;

    w_d <- w_d * exp(rate * net_d / scale), mixed with a fixed share (see `FixedShare`).

    net_d is what d came to in the round, in tokens: accepted tokens less the worth of the time they took, catching up
    included, at the goodput of the best drafter (see `Prospects`). All drafters gain every round, whoever ran: one that
    ran by its outcome; n-gram lookup by its score against what was emitted; a draft model that did not run
    by its running acceptance. That one goes stale, so a drafter of which nothing was heard for a while is tried by
    one row with one token, on an allowance that bounds the time this may lose; catching up then scores it at
    once on the text it missed.

    Scope: weights per request (which begin at those of its task), per task or for all traffic. A drawn drafter is kept
    for `dwell` rounds, since every switch to a draft model pays a catch-up.

    Regimes: two drafters whose worth depends on the text, such as a draft model and lookup on code or quotations.
    Within O(sqrt(T log K)) of the best drafter per group, and after a shift back at it within about log(1 / share) /
    (rate * lead) rounds. With one drafter it is `goodput`, a little later. Sources: Freund & Schapire 1997, "A
    decision-theoretic generalization of on-line learning"; Herbster & Warmuth 1998, "Tracking the best expert".
    """

    _STALE_ROUNDS = 8

    def __init__(self, cost: CostTable, rows: int, tasks: int, settings: HedgeSettings = HedgeSettings()) -> None:
        """`tasks` counts the known tasks and task 0, unknown."""
        self._cost = cost
        self._settings = settings
        self._names = settings.drafters
        self._parts = [
            Goodput(
                cost,
                rows,
                tasks,
                GoodputSettings(settings.tiers, name, settings.signals, stops=settings.stops, tryouts=0.0),
            )
            for name in self._names
        ]
        self.max_depth = self._parts[0].max_depth
        self._tier = min((tier for tier in settings.tiers if tier), default=0)
        # A lookup asks no stop rule: what the rule needs to know is what the draft model's own goodput knows.
        self._stopped = self._names.index("draft-model") if "draft-model" in self._names else 0
        self.calibration: Calibration = self._parts[self._stopped].calibration
        groups = 1 if settings.scope == "global" else tasks
        self._groups = FixedShare(groups, len(self._names), settings.rate, settings.share)
        self._own = FixedShare(rows, len(self._names), settings.rate, settings.share)
        self._group: IntArray = np.zeros(rows, dtype=np.int64)
        self._drawn: IntArray = np.full(rows, -1, dtype=np.int64)
        self._chance: FloatArray = np.full(rows, np.nan)
        self._prospects = Prospects(len(self._names), rows, self.max_depth)
        self._waiting: list[RoundRecord] = []
        self._due, self._patience, self._new = 0, 1, 0
        self._tries = _Tries(len(self._names), settings.tryouts)
        self._random = np.random.default_rng(settings.seed)

    def start(self, row: int, task: int) -> None:
        """See `Chooser.start`."""
        self._learn_waiting()
        for part in self._parts:
            part.start(row, task)
        self._group[row] = 0 if self._settings.scope == "global" else task
        self._own.start(row, self._groups.weights(self._group[row : row + 1])[0])
        self._prospects.forget(row)
        self._drawn[row] = -1
        self._new += 1

    def finish(self, row: int) -> None:
        """What the row taught stays with its group; its own weights go at the next start."""

    def choose(self, signals: BatchSignals) -> Choice:
        """See `Chooser.choose`."""
        if self.max_depth == 0:
            return Choice(np.zeros_like(signals.rows), np.full_like(signals.rows, int(Reason.OFF)))
        self._due -= 1
        if 8 * self._new > len(signals.rows):
            self._due, self._patience = min(self._due, 2), 1
            self._new = 0
        if self._due <= 0:
            self._renew(signals)
            self._draw(signals.rows)
        elif (self._drawn[signals.rows] < 0).any():
            self._draw(signals.rows[self._drawn[signals.rows] < 0])
        choice = self._choose_drawn(signals)
        return self._tryout(choice, signals)

    def learn(self, record: RoundRecord) -> None:
        """See `Chooser.learn`. Rounds are learned a few at a time, before the next draw."""
        if not len(record.rows):
            return
        self._waiting.append(record)
        self._tries.after(record)
        if len(self._waiting) >= self._settings.dwell:
            self._learn_waiting()

    def learned(self) -> dict[str, FloatArray]:
        """Evidence for each drafter by group, and what each drafter's own goodput learned."""
        learned = {"evidence": self._groups.learned()}
        for name, part in zip(self._names, self._parts, strict=True):
            learned |= {f"{name}/{key}": value for key, value in part.learned().items()}
        return learned

    def restore(self, learned: Mapping[str, FloatArray]) -> None:
        """See `Chooser.restore`."""
        evidence = sums(learned, "evidence", self._groups.learned().shape)
        own = [under(f"{name}/", learned) for name in self._names]
        before = [part.learned() for part in self._parts]
        try:
            for part, state in zip(self._parts, own, strict=True):
                part.restore(state)
        except Exception:
            for part, state in zip(self._parts, before, strict=True):
                part.restore(state)
            raise
        self._groups.restore(evidence)

    def _renew(self, signals: BatchSignals) -> None:
        """Learn what waits, and plan every drafter anew; the longer the batch stays, the rarer."""
        self._learn_waiting()
        markets = [part.market(_seen_by(which, signals)) for which, part in enumerate(self._parts)]
        self._prospects.renew(signals.rows, markets)
        self._new = 0
        self._patience = min(2 * self._patience, self._settings.dwell)
        self._due = self._patience

    def _draw(self, rows: IntArray) -> None:
        """A drafter for each row: of those that would draft for it, by weight; the best of all where none would."""
        request = self._settings.scope == "request"
        weights = self._own.weights(rows) if request else self._groups.weights(self._group[rows])
        useful = self._prospects.useful(rows)
        none = ~useful.any(axis=1)
        useful[none] = weights[none] == weights[none].max(axis=1, keepdims=True)
        chances = np.where(useful, weights, 0.0)
        chances /= chances.sum(axis=1, keepdims=True)
        # Rows of a group draw with the same luck, so that rows alike draw alike: they share a draft step.
        luck = self._random.random(int(self._group[rows].max()) + 1)[self._group[rows]]
        beyond = np.cumsum(chances, axis=1)[:, :-1] <= luck[:, None]
        drawn = beyond.sum(axis=1)
        self._drawn[rows] = drawn
        self._chance[rows] = chances[np.arange(len(rows)), drawn]

    def _choose_drawn(self, signals: BatchSignals) -> Choice:
        """Depths by the goodput of the drafter drawn for each row."""
        drawn = self._drawn[signals.rows]
        told = Provenance(drawn, self._chance[signals.rows], self._group[signals.rows], np.full(len(drawn), np.nan))
        used = np.unique(drawn).tolist() if len(drawn) > 1 else [int(drawn[0])]
        if len(used) == 1:
            choice = self._parts[used[0]].choose(_seen_by(used[0], signals))
            return replace(choice, drafter=drawn, provenance=told)
        depths, reasons = np.zeros_like(drawn), np.zeros_like(drawn)
        outlook: Outlook | None = None
        for which in used:
            mine = np.flatnonzero(drawn == which)
            part = self._parts[which].choose(_seen_by(which, signals.take(mine)))
            depths[mine], reasons[mine] = part.depths, part.reasons
            if which == self._stopped and part.outlook is not None:
                outlook = _spread(part.outlook, mine, len(drawn))
        return Choice(depths, reasons, outlook, drawn, provenance=told)

    def _tryout(self, choice: Choice, signals: BatchSignals) -> Choice:
        """One token by a drafter of which nothing was heard lately, in the row with the least to catch up."""
        which = self._tries.stalest(self._STALE_ROUNDS)
        if which is None or choice.drafter is None:
            return choice
        self._tries.allowance.earn(self._prospects.plain)
        i = self._tried_row(which, signals)
        if i is None:
            return choice
        depths = np.minimum(choice.depths, signals.limits)
        reasons, drafter = choice.reasons.copy(), choice.drafter.copy()
        depths[i], reasons[i], drafter[i] = self._tier, int(Reason.EXPLORE), which
        return replace(choice, depths=depths, reasons=reasons, drafter=drafter, provenance=None)

    def _tried_row(self, which: int, signals: BatchSignals) -> int | None:
        """Where in the batch to try it now, if at all."""
        prospects, tries = self._prospects, self._tries
        able = signals.limits >= self._tier
        begun = np.flatnonzero(able & (signals.rows == tries.unfinished))
        if len(begun):
            tries.begin(tries.unfinished, 0.0, prospects.plain)
            return int(begun[0])
        if not tries.allowance.affords(float(prospects.first[which])) or not able.any():
            return None
        i = int(np.argmin(np.where(able, signals.lag[which], np.iinfo(np.int64).max)))
        # As in goodput: catching up is priced at two rounds at most, or a long pause would never end.
        catch_up = self._cost.catch_up_seconds(self._names[which], float(signals.lag[which, i]))
        given_up = float(prospects.expected(signals.rows[i : i + 1]).max(initial=0.0)) / len(signals.rows)
        cost = float(prospects.first[which]) + min(catch_up, 2.0 * prospects.plain) + given_up * prospects.plain
        if not tries.allowance.affords(cost):
            return None
        tries.begin(int(signals.rows[i]), cost, prospects.plain)
        return i

    def _learn_waiting(self) -> None:
        """Teach the drafters' estimates and the weights."""
        records, self._waiting = self._waiting, []
        if not records or self.max_depth == 0:
            return
        gains = self._prospects.gains(records)
        net = (gains.net / self._prospects.scale).T
        self._gain(self._groups, self._group[gains.rows], net, len(records))
        if self._settings.scope == "request":
            self._gain(self._own, gains.rows, net, len(records))
        for record in records:
            for which, part in enumerate(self._parts):
                part.learn(as_played(record, which, self.max_depth))

    @staticmethod
    def _gain(weights: FixedShare, members: IntArray, net: FloatArray, rounds: int) -> None:
        """A row gains the sum over its rounds, a group what its rows gain on average."""
        who, index, counts = np.unique(members, return_inverse=True, return_counts=True)
        total = np.stack([np.bincount(index, column) for column in net.T], axis=1)
        spans = np.minimum(counts, rounds).astype(np.float64)
        weights.gain(who, total * (spans / counts)[:, None], spans)


class _Tries:
    """Since when nothing was heard of each drafter, and the allowance for asking."""

    def __init__(self, drafters: int, share: float) -> None:
        self.allowance = Allowance(share)
        self.unfinished = -1  # the row of a try that has still to read: a long pause is caught up in several rounds
        self._silent = [0] * drafters
        self._trying: tuple[int, float, float] | None = None
        self._owed = 0.0

    def stalest(self, rounds: int) -> int | None:
        """The drafter that was silent longest, if for that many rounds."""
        longest = max(self._silent)
        return self._silent.index(longest) if longest >= rounds else None

    def begin(self, row: int, cost: float, plain: float) -> None:
        self._trying = row, cost + self._owed, plain

    def after(self, record: RoundRecord) -> None:
        self._silent = [0 if plays(record, which) else count + 1 for which, count in enumerate(self._silent)]
        trying, self._trying = self._trying, None
        self.unfinished = -1
        if trying is not None:
            row, cost, plain = trying
            mine = record.rows == row
            if record.caught_up and not record.drafted[mine].any():
                self.unfinished, self._owed = row, cost
                return
            self._owed = 0.0
            kept = int(record.accepted[mine].sum())
            self.allowance.settle(cost, kept * plain / len(record.rows))


def _seen_by(which: int, signals: BatchSignals) -> BatchSignals:
    """The signals as a chooser of only that drafter sees them: its lag comes first."""
    return replace(signals, lag=signals.lag[which:]) if which else signals


def _spread(outlook: Outlook, mine: IntArray, rows: int) -> Outlook:
    """An outlook on some of the rows, laid out for the whole batch."""
    acceptance: FloatArray = np.zeros((rows, outlook.acceptance.shape[1]))
    factors: FloatArray = np.ones(rows)
    acceptance[mine], factors[mine] = outlook.acceptance, 1.0 if outlook.factors is None else outlook.factors
    return replace(outlook, acceptance=acceptance, factors=factors)


class HedgeSpec(Part):
    """`choose:` of a hedge over drafters."""

    takes_tiers: ClassVar[bool] = True
    takes_drafters: ClassVar[bool] = True

    algorithm: Literal["hedge"]
    scope: Scope = Field(default="request", description="What has weights of its own.")
    rate: float = Field(default=0.5, gt=0.0, le=10.0, description="How fast weights follow gains.")
    share: float = Field(default=0.01, gt=0.0, lt=0.5, description="Of the weights, spread evenly every round.")
    dwell: int = Field(default=8, ge=1, le=1000, description="Rounds that a drawn drafter is kept.")
    tryouts: float = Field(default=0.02, ge=0.0, le=0.5, description="Share of time for trying silent drafters.")
    discount: float = Field(default=0.99, gt=0.5, le=1.0, description="Per round of a request: how fast counts fade.")
    prior: PriorSpec = Field(default=PriorSpec(), description="What is believed at first.")

    def build(self, parts: Parts) -> Chooser:
        """The chooser."""
        settings = HedgeSettings(
            drafters=parts.drafters,
            tiers=parts.tiers,
            scope=self.scope,
            rate=self.rate,
            share=self.share,
            dwell=self.dwell,
            tryouts=self.tryouts,
            signals=SignalSettings(self.prior.acceptance, self.prior.weight, row=self.discount),
            stops=parts.stops,
        )
        return Hedge(parts.cost, parts.max_rows, parts.tasks, settings)

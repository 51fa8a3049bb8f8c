"""Which drafter: full-information hedge between the draft model's plan and the lookup's offers."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, cast

import numpy as np
from pydantic import Field

from adaptspec.control.arrays import chosen, some
from adaptspec.control.choosers.bets import OFFER, ROUNDS, Bet, BetBook, Bets
from adaptspec.control.choosers.chooser import Choice, Chooser, Parts
from adaptspec.control.choosers.experts import FixedShare
from adaptspec.control.choosers.goodput import Goodput, GoodputSettings, PriorSpec
from adaptspec.control.choosers.lookup import LOOKUP, LookupGoodput, LookupSettings, Prices
from adaptspec.control.choosers.offers import NetTable
from adaptspec.control.choosers.standing import MANY
from adaptspec.control.copies import changed
from adaptspec.control.cost import CostTable
from adaptspec.control.learned import sums
from adaptspec.control.policy import BatchSignals
from adaptspec.control.reasons import POLICY
from adaptspec.control.schema import Part
from adaptspec.control.signals import SignalSettings
from adaptspec.types import BoolArray, Expected, FloatArray, IntArray, Provenance, Reason, RoundRecord

Scope = Literal["request", "task", "global"]
_MODEL = "draft-model"
# Tokens that an offer must net: the estimate of a lookup that is never right stays a little above 0.
_LEAST = 0.05
# Choices that may be repeated, remembered at most.
_MOST_TOLD = 32
# Rounds between tries in vain of a draft model that is off.
_REST = 28


@dataclass(frozen=True)
class HedgeSettings:
    """`rate` and `share`: see `FixedShare`. `dwell`: rounds between draws. `explore`: share of draws that go to the

    plan whatever the weights, where it drafts: not of a request's first, before anything is known of it.
    """

    scope: Scope = "request"
    rate: float = 0.5
    share: float = 0.01
    dwell: int = 8
    explore: float = 0.02
    seed: int = 0


class Hedge(LookupGoodput):
    """Draw a drafter d for each row with probability w_d, for `dwell` rounds: the draft model's plan (which may be

    off), or the lookup in its place, wherever it has an offer that is expected to earn more than plain decoding;
    w_d <- w_d * exp(rate * net_d / scale), mixed with a fixed share (see `FixedShare`), over rounds in which there was
    such an offer: elsewhere the two do the same.

    net_d is what d came to in the round, in tokens: accepted tokens less the worth of the time they took at the plan's
    goodput. Both gain every round, whoever ran: the lookup by its outcome or its score against what was emitted, going
    on as expected where all of that was right; the plan by its outcome, or by what it expects. `scale` is
    the tokens that a row is worth in a plain round's time. What is expected of a plan that does not run goes
    stale, so a small share of draws goes to it where it drafts; rows whose plan is off are tried by `Goodput` itself.

    Scope: weights per request (which begin at those of its task), per task or for all traffic.

    Regimes: text on which what either drafter brings cannot be told beforehand. `LookupGoodput`, of which this is the
    cautious sister, weighs each offer by how often such offers were right: better wherever that holds; the hedge asks
    only who came out ahead, within O(sqrt(T log 2)) of the better, and after a shift back at it within about
    log(1 / share) / (rate * lead) rounds with offers. Sources: Freund & Schapire 1997, "A decision-theoretic
    generalization of on-line learning"; Herbster & Warmuth 1998, "Tracking the best expert".
    """

    def __init__(
        self,
        cost: CostTable,
        rows: int,
        tasks: int,
        lookup: LookupSettings,
        planner: Goodput | None = None,
        *,
        settings: HedgeSettings = HedgeSettings(),
    ) -> None:
        """See `LookupGoodput`."""
        super().__init__(cost, rows, tasks, lookup, planner)
        self._hedge = settings
        self._number = groups = 1 if settings.scope == "global" else tasks
        self._groups = FixedShare(groups, 2, settings.rate, settings.share)
        self._own = FixedShare(rows, 2, settings.rate, settings.share)
        self._group: IntArray = np.zeros(rows, dtype=np.int64)
        self._book = BetBook(rows, lookup.lookup)  # since the last draw
        self._offering: BoolArray = np.zeros(rows, dtype=np.bool_)  # whether the lookup was drawn
        self._chance: FloatArray = np.ones(rows)
        self._unknown: FloatArray = np.zeros(0)
        self._planned: BoolArray = np.zeros(rows, dtype=np.bool_)  # whether the plan drafted beside the last offer
        self._due = 0
        self._told: tuple[bytes, Provenance] | None = None
        self._told_of: dict[Choice, Choice] = {}
        self._bet: Bet | Bets | None = None  # of the round to come, and its rows
        self._betting = b""
        self._random = np.random.default_rng(settings.seed)
        self._luck: FloatArray = self._random.random(groups)

    def start(self, row: int, task: int) -> None:
        """See `Chooser.start`."""
        super().start(row, task)
        if self._book.rows < MANY:  # else one row's last rounds hardly tell what its group should begin with
            self._settle()
        self._group[row] = 0 if self._hedge.scope == "global" else task
        self._book.start(row, self._group.item(row))
        self._own.start(row, self._groups.weights(self._group[row : row + 1])[0])
        self._planned[row] = False
        self._draw_one(row)

    def choose(self, signals: BatchSignals) -> Choice:
        """See `Chooser.choose`."""
        if not self.max_depth:
            return super().choose(signals)
        self._due -= 1
        if self._due <= 0:
            self._settle()
            self._due = self._hedge.dwell
            self._draw(signals.rows)
        self._tell_draws(signals.rows)
        return super().choose(signals)

    @property
    def planned(self) -> Choice:
        """See `TakesOffers`."""
        return self._telling(super().planned)

    def take(self, signals: BatchSignals) -> Choice | None:
        """See `TakesOffers`."""
        self._bet, self._betting = None, signals.rows.tobytes()
        choice = super().take(signals)
        return None if choice is None else self._telling(choice)

    def stands(self) -> int:
        """See `Stands`."""
        return min(super().stands(), self._due - 1)

    def stood(self, rounds: int) -> None:
        """See `Stands`."""
        super().stood(rounds)
        self._due -= rounds

    def scored(self, record: RoundRecord) -> None:
        """See `TakesOffers`."""
        bet, self._bet = self._bet, None
        # One left from a round that failed half-way says nothing of this one.
        if bet is not None and record.rows.tobytes() == self._betting:
            self._book.note(bet, record)
            if self._book.full:
                self._settle()
        super().scored(record)

    def learned(self) -> dict[str, FloatArray]:
        """Evidence for plan and offers by group, and what both rest on."""
        self._settle()
        return {"evidence": self._groups.learned()} | super().learned()

    def restore(self, learned: Mapping[str, FloatArray]) -> None:
        """See `Chooser.restore`."""
        evidence = sums(learned, "evidence", self._groups.learned().shape)
        super().restore({name: values for name, values in learned.items() if name != "evidence"})
        self._groups.restore(evidence)

    def _draw(self, rows: IntArray) -> None:
        """Plan or offers for each of these rows."""
        # Rows of a group draw with the same luck, so that rows alike draw alike: they share a draft step.
        if len(rows) == 1:
            self._luck[self._group.item(rows.item())] = self._random.random()
            self._draw_one(rows.item())
            return
        self._told, self._luck = None, self._random.random(self._number)
        groups = self._group[rows]
        request = self._hedge.scope == "request"
        weights = (self._own.weights(rows) if request else self._groups.weights(groups))[:, OFFER]
        chance = weights * (1.0 - self._hedge.explore * self._planned[rows])
        offering = self._luck[groups] < chance
        self._offering[rows] = offering
        self._chance[rows] = np.where(offering, chance, 1.0 - chance)

    def _draw_one(self, row: int) -> None:
        """The same for one row, with the luck that its group has had."""
        self._told = None
        request, group = self._hedge.scope == "request", self._group.item(row)
        chance = self._own.weight(row, OFFER) if request else self._groups.weight(group, OFFER)
        if self._planned.item(row):
            chance *= 1.0 - self._hedge.explore
        offering = self._luck.item(group) < chance
        self._offering[row] = offering
        self._chance[row] = chance if offering else 1.0 - chance

    def _tell_draws(self, rows: IntArray) -> None:
        """Say who was drawn, by the policy's numbers; the same object until somebody draws."""
        batch = rows.tobytes()
        if self._told is None or self._told[0] != batch:
            if len(self._unknown) != len(rows):
                self._unknown = np.full(len(rows), np.nan)
            arms = self._drafter_of(self._offering.take(rows))
            self._told = batch, Provenance(arms, self._chance.take(rows), self._group.take(rows), self._unknown)

    def _telling(self, choice: Choice) -> Choice:
        """The choice with who was drawn; the same object until somebody draws."""
        told = None if self._told is None else self._told[1]
        if choice.provenance is told:
            return choice
        known = self._told_of.get(choice)
        if known is None or known.provenance is not told:
            if len(self._told_of) >= _MOST_TOLD:
                self._told_of.clear()
            known = self._told_of[choice] = changed(choice, provenance=told)
        return known

    def _choose_one(self, plan: Choice, most: int, signals: BatchSignals) -> Choice | None:
        bet = cast("Bet", self._weighed(plan, most, signals))
        if not bet.depth:
            return None
        row = signals.rows.item()
        self._bet = bet
        self._planned[row] = bet.beside
        return bet.choice if self._offering[row] and plan.reasons.item() != Reason.EXPLORE else None

    def _weigh(self, plan: Choice, most: int, expected: list[float], prices: Prices) -> Bet:
        outlook = plan.outlook
        planned = outlook is not None and bool(plan.depths.item())
        entry = 0.0 if planned else prices.goodput * (prices.round.overhead - prices.round.plain)
        best, depth = entry + _LEAST, 0
        for tier in self._tiers:
            if tier > most:
                break
            net = expected[tier - 1] - prices.goodput * (prices.more[tier] - prices.more[0])
            if net > best:
                best, depth = net, tier
        kept, worth = 0.0, 0.0
        if outlook is not None and planned:
            cap = plan.depths.item() if outlook.planned is None else min(plan.depths.item(), outlook.planned.item())
            kept = outlook.gained[0].item(cap)
            worth = prices.ahead
        choice = self._taking(plan, depth, expected, prices.goodput) if depth else None
        return Bet(expected, depth, choice, planned, kept, worth, prices, entry)

    def _choose_many(self, plan: Choice, offered: IntArray, signals: BatchSignals) -> Choice | None:
        rows, prices = signals.rows, self._priced(plan, signals)
        nets = self._nets(plan, prices)
        kinds = self._streaks.kinds(rows)
        places = nets.places(kinds, offered)
        depth = nets.depths.take(places)
        taken = depth > 0
        offers = int(np.count_nonzero(taken))
        if not offers:
            return None
        drafts = plan.depths > 0
        entry = 0.0
        if not some(drafts):
            # Nobody drafts otherwise: all offers together pay for this being a round with drafts.
            entry = prices.goodput * (prices.round.overhead - prices.round.plain)
            if float(nets.worth.take(places).sum()) <= entry:
                return None
        kept, _ = self._hopes(plan, self._bound(plan))
        bets = self._bet = Bets(depth, kinds, nets.gains, kept, prices, entry / offers)
        self._planned[rows] = drafts
        taken &= self._offering.take(rows)
        if self._planner is not None and self._planner.trying:
            taken &= plan.reasons != int(Reason.EXPLORE)
        if not some(taken):
            return None
        return Choice(
            chosen(taken, depth, plan.depths),
            chosen(taken, POLICY, plan.reasons),
            plan.outlook,
            self._drafter_of(taken),
            provenance=None if self._told is None else self._told[1],
            expected=_Netting(bets, nets, taken),
        )

    def _nets(self, plan: Choice, prices: Prices) -> NetTable:
        """What offers net beside this plan; good while prices and estimates serve."""
        gains = self._streaks.gains_of_kinds()
        if prices.nets is None or prices.nets.gains is not gains:
            # What an offer costs more to verify is read off where the plan's drafts end.
            curve, size = prices.round.curve, len(plan.depths)
            beside = min(int(plan.depths.sum()) * (size - 1) // size, len(curve) - 1 - self.max_depth)
            seconds = curve[beside + 1 : beside + 1 + self.max_depth] - curve[beside]
            prices.nets = NetTable(gains, self._allowed, prices.goodput * seconds, _LEAST)
        return prices.nets

    def _settle(self) -> None:
        """Let weights take note of what was gained: a request sums over its rounds, a group averages over its rows."""
        gained = self._book.settle()
        if gained is None:
            return
        gains = gained.gains
        if self._hedge.scope == "request":
            runs = gained.rows >= 0
            self._own.gain(gained.rows[runs], gains[runs, :ROUNDS], gains[runs, ROUNDS])
        groups, index, counts = np.unique(gained.groups, return_inverse=True, return_counts=True)
        means = np.stack([np.bincount(index, column) for column in gains.T], axis=1) / counts[:, None]
        self._groups.gain(groups, means[:, :ROUNDS], means[:, ROUNDS])


class _Netting(Expected):
    """What offers that are `taken` [B] and a plan beside them are expected to bring, worked out where somebody asks."""

    _bets: Bets
    _nets: NetTable
    _taken: BoolArray

    def __init__(self, bets: Bets, nets: NetTable, taken: BoolArray) -> None:
        self.__dict__.update(goodput=bets.prices.goodput, _bets=bets, _nets=nets, _taken=taken)

    @functools.cached_property
    def accepted(self) -> FloatArray:
        """See `Expected`."""
        bets, nets = self._bets, self._nets
        return np.where(self._taken, nets.kept.take(nets.places(bets.kinds, bets.depth)), bets.kept)


class HedgeSpec(Part):
    """`choose:` of a hedge over drafters."""

    takes_tiers: ClassVar[bool] = True
    takes_drafters: ClassVar[bool] = True
    weighs_offers: ClassVar[bool] = True

    algorithm: Literal["hedge"]
    scope: Scope = Field(default="request", description="What has weights of its own.")
    rate: float = Field(default=0.5, gt=0.0, le=10.0, description="How fast weights follow gains.")
    share: float = Field(default=0.01, gt=0.0, lt=0.5, description="Of the weights, spread evenly every round.")
    dwell: int = Field(default=8, ge=1, le=1000, description="Rounds that a drawn drafter is kept.")
    explore: float = Field(default=0.02, ge=0.0, le=0.5, description="Share of draws that go to the model anyway.")
    tryouts: float = Field(default=0.02, ge=0.0, le=0.5, description="Share of time for trying rows that are off.")
    discount: float = Field(default=0.99, gt=0.5, le=1.0, description="Per round of a request: how fast counts fade.")
    prior: PriorSpec = Field(default=PriorSpec(), description="What is believed at first.")

    def build(self, parts: Parts) -> Chooser:
        """The chooser; with one drafter there is nothing to hedge, and it is `goodput`."""
        planner = self._planner(parts) if _MODEL in parts.drafters else None
        if planner is not None and LOOKUP not in parts.drafters:
            return planner
        lookup = LookupSettings.among(parts.drafters, parts.tiers)
        if planner is None:
            return LookupGoodput(parts.cost, parts.max_rows, parts.tasks, lookup)
        settings = HedgeSettings(self.scope, self.rate, self.share, self.dwell, self.explore)
        return Hedge(parts.cost, parts.max_rows, parts.tasks, lookup, planner, settings=settings)

    def _planner(self, parts: Parts) -> Goodput:
        signals = SignalSettings(self.prior.acceptance, self.prior.weight, row=self.discount)
        settings = GoodputSettings(parts.tiers, _MODEL, signals, stops=parts.stops, tryouts=self.tryouts, rest=_REST)
        return Goodput(parts.cost, parts.max_rows, parts.tasks, settings)

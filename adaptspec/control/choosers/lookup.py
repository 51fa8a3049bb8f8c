"""Goodput with a lookup at hand: in every round and row, whatever is expected to earn more."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from adaptspec.control.arrays import chosen, number, some, total
from adaptspec.control.choosers.chooser import Alike, Choice, Outlook
from adaptspec.control.choosers.goodput import Goodput
from adaptspec.control.choosers.mixing import PRICES, Bids, Hoped, Mix, RoundPrices, Way, best_mix, mix_again
from adaptspec.control.choosers.offers import NetTable, OfferTable
from adaptspec.control.choosers.streaks import Streaks
from adaptspec.control.cost import CostTable
from adaptspec.control.learned import counts
from adaptspec.control.policy import BatchSignals
from adaptspec.control.reasons import POLICY
from adaptspec.types import BoolArray, Expected, FloatArray, IntArray, Reason, RoundRecord

LOOKUP = "ngram"
# Rounds without an offer that was worth taking, before looking gets rarer: one round in so many.
_PATIENCE, _LOOKS_EVERY = 16, 4
# Rounds for which plain decoding stands without a draft model, while nothing is offered.
_STANDS = 16
# From so many rows on the best way to sort them out serves for so many rounds with offers.
_MANY, _WAY_SERVES = 32, 16
_UNKNOWN = -1  # nobody looked
_NOTHING: FloatArray = np.zeros(1)  # is drafted at depth 0, by whom there is no outlook of


@dataclass(frozen=True)
class LookupSettings:
    """`lookup` and `model`: their places among the policy's drafters; no model: None. `tiers`: depths allowed."""

    lookup: int
    model: int | None
    tiers: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7)
    drafter: str = "draft-model"  # the model's name

    @classmethod
    def among(cls, drafters: tuple[str, ...], tiers: tuple[int, ...]) -> LookupSettings:
        """The lookup and the model among a policy's drafters, of which the lookup is one."""
        model = next((name for name in drafters if name != LOOKUP), None)
        if model is None:
            return cls(drafters.index(LOOKUP), None, tiers)
        return cls(drafters.index(LOOKUP), drafters.index(model), tiers, model)


class LookupGoodput:
    """Per row argmax over {what `Goodput` plans with the draft model, a draft of the lookup of any allowed depth}.

    What a lookup found is known before the round, and looking is free. So it is not an arm to be learned about: for
    one row the better of two ratios of tokens to seconds decides, for many what `best_mix` finds. What an offer brings
    is expected by how often in a row the lookup was right (see `Streaks`); it is scored in every
    round in which it was looked for, taken or not: in all, or in one of four while no offer is worth taking.

    Regimes: text that repeats its prompt or itself in stretches, between stretches that it does not: a draft model
    works through the latter, a lookup costs only the verification of the former. Without a draft model, or where it
    is off, offers are weighed against plain decoding. The draft model reads what it missed when it drafts again.
    """

    def __init__(
        self, cost: CostTable, rows: int, tasks: int, settings: LookupSettings, planner: Goodput | None = None
    ) -> None:
        """`planner` plans for the draft model, and `tasks` counts the known tasks and task 0, unknown."""
        self._cost = cost
        self._settings = settings
        self._planner = planner
        self.max_depth = max(settings.tiers, default=0)
        self.calibration = None if planner is None else planner.calibration
        self._streaks = Streaks(rows, tasks, self.max_depth)
        self._allowed: BoolArray = np.isin(np.arange(1, self.max_depth + 1), settings.tiers)
        self._tiers = [tier for tier in settings.tiers if tier]
        self._lookup: IntArray = np.array([settings.lookup])
        self._drafters: IntArray = np.array([settings.model or 0, settings.lookup])
        self._nothing = Alike()
        self._others: IntArray = np.zeros(0, dtype=np.int64)
        self._prices: Prices | None = None
        self._known: FloatArray | None = None  # gains of the kinds of rows that the offers' worth was found from
        self._plan_made = Choice(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
        self._idle = 0  # rounds since an offer was taken, or a request began

    @property
    def watches_offers(self) -> bool:
        """See `OfferWatcher`."""
        return self.max_depth > 0

    @property
    def looking(self) -> bool:
        """See `OfferWatcher`. After rounds without an offer worth taking, now and then: looking takes time."""
        return self._idle < _PATIENCE or self._idle % _LOOKS_EVERY == 0

    def start(self, row: int, task: int) -> None:
        """See `Chooser.start`."""
        self._idle = 0
        self._streaks.start(row, task)
        if self._planner is not None:
            self._planner.start(row, task)

    def finish(self, row: int) -> None:
        """See `Chooser.finish`."""
        if self._planner is not None:
            self._planner.finish(row)

    def choose(self, signals: BatchSignals) -> Choice:
        """See `Chooser.choose`."""
        self._plan_made = self._plan(signals)
        return self.take(signals) or self.planned

    @property
    def planned(self) -> Choice:
        """See `TakesOffers`."""
        return self._plan_made

    def take(self, signals: BatchSignals) -> Choice | None:
        """See `TakesOffers`."""
        if not self.max_depth:
            return None
        plan, offered = self._plan_made, signals.offered[self._settings.lookup]
        if len(offered) == 1:
            most = offered.item()
            return self._choose_one(plan, most, signals) if most else None
        if not some(offered):
            return None
        # Another policy may look farther ahead.
        return self._choose_many(plan, np.minimum(offered, self.max_depth), signals)

    def stands(self) -> int:
        """See `Stands`."""
        return _STANDS if self._planner is None else self._planner.stands()

    def stood(self, rounds: int) -> None:
        """See `Stands`."""
        if self._planner is not None:
            self._planner.stood(rounds)

    def scored(self, record: RoundRecord) -> None:
        """See `TakesOffers`."""
        if len(record.rows) > 1:
            taken = self._score_many(record)
        else:
            which, row = self._settings.lookup, record.rows.item()
            taken = record.drafter.item() == which and record.depths.item() > 0
            if taken:
                # Beyond the token that the round would have yielded anyway, as in `RowRounds`.
                self._streaks.observe_one(row, record.drafted.item(), record.emitted.item() - 1)
            elif record.shadow is None or record.shadow_drafted is None:
                self._streaks.observe_one(row, -1, -1)
            else:
                self._streaks.observe_one(row, record.shadow_drafted[which, 0].item(), record.shadow[which, 0].item())
        self._idle = 0 if taken else self._idle + 1

    def learn(self, record: RoundRecord) -> None:
        """See `Chooser.learn`."""
        model = self._settings.model
        if self._planner is not None and model is not None:
            # Only lookups are ever scored where they do not draft.
            ran: BoolArray = record.drafter == model
            self._planner.learn_played(record, None if number(ran) == len(ran) else ran)

    def _score_many(self, record: RoundRecord) -> bool:
        """Whether any offer was taken."""
        which = self._settings.lookup
        ran: BoolArray = record.drafter == which
        ran &= record.depths > 0
        reach, got = record.shadow_drafted, record.shadow
        drafted = np.full_like(record.rows, _UNKNOWN) if reach is None else reach[which]
        right = np.full_like(record.rows, _UNKNOWN) if got is None else got[which]
        taken = some(ran)
        if taken:
            drafted, right = chosen(ran, record.drafted, drafted), chosen(ran, record.emitted - 1, right)
        self._streaks.observe(record.rows, drafted, right)
        return taken

    def learned(self) -> dict[str, FloatArray]:
        """What is known of offers, and what the plan without them rests on."""
        own = {"offers": self._streaks.learned()}
        return own if self._planner is None else own | self._planner.learned()

    def restore(self, learned: Mapping[str, FloatArray]) -> None:
        """See `Chooser.restore`."""
        offers = counts(learned, "offers", self._streaks.learned().shape)
        if self._planner is not None:
            self._planner.restore({name: values for name, values in learned.items() if name != "offers"})
        self._streaks.restore(offers)

    def _plan(self, signals: BatchSignals) -> Choice:
        """What is done without the lookup."""
        size, model = len(signals.rows), self._settings.model
        if self._planner is None or model is None:
            return self._nothing.choice(signals, 0, Reason.OFF)
        if not model:
            return self._planner.choose(signals)
        if len(self._others) != size:
            self._others = np.full(size, model, dtype=np.int64)
        return replace(self._planner.choose(replace(signals, lag=signals.lag[model:])), drafter=self._others)

    def _choose_one(self, plan: Choice, most: int, signals: BatchSignals) -> Choice | None:
        # A try of the draft model has been paid for by now.
        return None if plan.reasons.item() == Reason.EXPLORE else self._weighed(plan, most, signals).choice

    def _weighed(self, plan: Choice, most: int, signals: BatchSignals) -> Weighed:
        """An offer of `most` tokens to one row; what was found of one like it, if all it rests on is the same."""
        prices, row, streaks = self._prices, signals.rows.item(), self._streaks
        if (
            prices is None
            or prices.left <= 0
            or prices.plan is not plan
            or prices.gains is not streaks.table
            or prices.round.base != signals.round_size
        ):
            prices = self._priced(plan, signals)
            prices.plan, prices.gains = plan, streaks.gains_of_kinds()
            prices.weighed.clear()
        else:
            prices.left -= 1
        kind = streaks.kind(row), most
        known = prices.weighed.get(kind)
        if known is None:
            known = prices.weighed[kind] = self._weigh(plan, most, streaks.gains_of_one(row), prices)
        return known

    def _weigh(self, plan: Choice, most: int, expected: list[float], prices: Prices) -> Weighed:
        """An offer of `most` tokens, of which so many are expected to be kept by depth."""
        base, more = prices.round.base, prices.more
        best, depth = prices.goodput, 0
        for tier in self._tiers:
            if tier > most:
                break
            goodput = (base + expected[tier - 1]) / more[tier]
            if goodput > best:
                best, depth = goodput, tier
        choice = self._taking(plan, depth, expected, best) if depth else None
        return Weighed(expected, depth, choice)

    def _taking(self, plan: Choice, depth: int, expected: list[float], goodput: float) -> Choice:
        """The offer to one row, taken to a depth in place of the plan."""
        hoped = Expected(goodput, np.array(expected[depth - 1 : depth]))
        return Choice(np.array([depth]), POLICY, plan.outlook, self._lookup, expected=hoped)

    def _choose_many(self, plan: Choice, offered: IntArray, signals: BatchSignals) -> Choice | None:
        """What becomes of offers of so many tokens [B]; None: all do as planned."""
        mix = self._sorted_out(self._bids(plan, offered, signals), self._priced(plan, signals))
        taken = mix.taken > 0
        if not some(taken):
            return None
        return Choice(
            chosen(mix.follows, plan.depths, mix.taken),
            chosen(taken, POLICY, plan.reasons),
            plan.outlook,
            self._drafter_of(taken),
            expected=Hoped(mix),
        )

    @staticmethod
    def _sorted_out(bids: Bids, prices: Prices) -> Mix:
        """Among few rows each offer may call for another way; many average out, and a way serves for some rounds."""
        prices.served += 1
        if prices.way is not None and len(bids.kinds) >= _MANY and prices.served < _WAY_SERVES:
            return mix_again(bids, prices.round, prices.way)
        mix = best_mix(bids, prices.round)
        # A way that takes nothing would not see better offers come.
        prices.way, prices.served = (mix.way if some(mix.taken) else None), 0
        return mix

    def _bids(self, plan: Choice, offered: IntArray, signals: BatchSignals) -> Bids:
        gains = self._streaks.gains_of_kinds()
        if gains is not self._known:
            self._known, self._offers = gains, OfferTable(gains, self._allowed, PRICES)
        bound = self._bound(plan)
        sizes = _NOTHING if plan.outlook is None else plan.outlook.sizes
        return Bids(self._offers, self._streaks.kinds(signals.rows), offered, *self._hopes(plan, bound), sizes, bound)

    @staticmethod
    def _hopes(plan: Choice, bound: BoolArray | None) -> tuple[FloatArray, IntArray]:
        """Tokens that a plan is expected to keep, and depths that it was made for where its own are caps; both [B].

        `bound` [B] must do as planned.
        """
        depths, outlook = plan.depths, plan.outlook
        if outlook is None:
            return np.zeros(len(depths)), depths
        if outlook.planned is not None:
            lower = np.minimum(depths, outlook.planned)
            depths = lower if bound is None else np.where(bound, depths, lower)
        return outlook.kept_at(depths), depths

    def _drafter_of(self, taken: BoolArray) -> IntArray:
        """Who drafts for each row: the lookup where its offer is taken, else the model; [B]."""
        return self._drafters.take(taken.view(np.int8))

    def _bound(self, plan: Choice) -> BoolArray | None:
        """Rows that must do as planned [B]: those that are tried. None: nobody."""
        return plan.reasons == int(Reason.EXPLORE) if self._planner is not None and self._planner.trying else None

    def _priced(self, plan: Choice, signals: BatchSignals) -> Prices:
        size = signals.round_size
        known = self._prices
        if known is not None and known.serves(plan, size):
            known.left -= 1
            return known
        cost, context, outlook = self._cost, float(total(signals.context)), plan.outlook
        plain = cost.plain_seconds(size, context)
        more = cost.overhead_seconds(size, drafting=True) - cost.overhead_seconds(size, drafting=False)
        most = len(signals.rows) * self.max_depth
        curve = cost.verify_line(size, most, context) if outlook is None else outlook.verify
        # As learned it may fall here and there; no round takes less for verifying more.
        curve = np.maximum(curve - curve[0], 0.0)
        if outlook is None:
            self._prices = Prices(RoundPrices(float(size), plain, plain + more, curve), size / plain, outlook)
        else:
            start = cost.start_seconds(self._settings.drafter)
            drafting = start, outlook.per_step, outlook.per_row, outlook.drafted
            prices = RoundPrices(float(size), plain, plain + more, curve, *drafting)
            self._prices = Prices(prices, outlook.goodput, outlook)
        return self._prices


@dataclass(frozen=True, eq=False)
class Weighed:
    """An offer to one row, of which so much is expected: the depth that earns most, 0 for none, and what takes it."""

    expected: list[float]
    depth: int
    choice: Choice | None


@dataclass
class Prices:
    """What a round takes, and what the plan without offers promises; good for some rounds."""

    round: RoundPrices
    goodput: float
    outlook: Outlook | None
    left: int = 16  # rounds with offers
    way: Way | None = None  # to sort many rows out, and how many rounds it has served
    served: int = 0
    # Offers to one row, by its kind and their size, beside this plan and by these estimates.
    weighed: dict[tuple[int, int], Weighed] = field(default_factory=dict)
    plan: Choice | None = None
    gains: FloatArray | None = None
    nets: NetTable | None = None  # of offers to many rows, for who asks what each nets

    @functools.cached_property
    def more(self) -> list[float]:
        """Seconds of a round without draft steps that verifies 0, 1, 2 ... tokens more."""
        more: list[float] = (self.round.overhead + self.round.curve).tolist()
        return more

    @property
    def ahead(self) -> float:
        """Tokens that the plan nets beyond plain decoding's, in a plain round's time."""
        return max(0.0, self.goodput * self.round.plain - self.round.base)

    def serves(self, plan: Choice, size: int) -> bool:
        """Whether this plan of so many rows rests on them."""
        if self.left <= 0 or self.round.base != size:
            return False
        # A plan laid out for other rows has an outlook of its own, but the prices are those of the plan.
        mine, its = self.outlook, plan.outlook
        return mine is its or (mine is not None and its is not None and mine.verify is its.verify)

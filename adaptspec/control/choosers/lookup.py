"""Goodput with a lookup at hand: in every round and row, whatever is expected to earn more."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from adaptspec.control.arrays import alike, some, total
from adaptspec.control.choosers.chooser import Alike, Choice, Outlook
from adaptspec.control.choosers.goodput import Goodput
from adaptspec.control.choosers.mixing import PRICES, Bids, Mix, RoundPrices, Way, best_mix, mix_again
from adaptspec.control.choosers.offers import OfferTable
from adaptspec.control.choosers.streaks import Streaks
from adaptspec.control.cost import CostTable
from adaptspec.control.learned import counts
from adaptspec.control.policy import BatchSignals
from adaptspec.types import BoolArray, Expected, FloatArray, IntArray, Reason, RoundRecord

LOOKUP = "ngram"
# Rounds without an offer that was worth taking, before looking gets rarer: one round in so many.
_PATIENCE, _LOOKS_EVERY = 16, 4
# Rounds for which plain decoding stands without a draft model, while nothing is offered.
_STANDS = 16
# From so many rows on the best way to sort them out serves for so many rounds with offers.
_MANY, _WAY_SERVES = 32, 16


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
        self._nothing = Alike()
        self._others: IntArray = np.zeros(0, dtype=np.int64)
        self._prices: Prices | None = None
        self._known: FloatArray | None = None  # gains of the kinds of rows that the offers' worth was found from
        self._as_planned = False  # the last choice, whatever was offered
        self._idle = 0  # rounds since an offer was taken, or a request began

    @property
    def watches_offers(self) -> bool:
        """See `OfferWatcher`."""
        return self.max_depth > 0

    def looking(self, unheard: int = 0) -> bool:
        """See `OfferWatcher`. After rounds without an offer worth taking, now and then: looking takes time."""
        idle = self._idle + unheard
        return idle < _PATIENCE or idle % _LOOKS_EVERY == 0

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
        plan = choice = self._plan(signals)
        if self.max_depth:
            offered = signals.offered[self._settings.lookup]
            if some(offered):
                choose = self._choose_one if len(offered) == 1 else self._choose_many
                choice = choose(plan, signals, self._priced(plan, signals))
        self._as_planned = choice is plan
        return choice

    def stands(self) -> int:
        """See `Stands`."""
        if not self._as_planned:
            return 0
        return _STANDS if self._planner is None else self._planner.stands()

    def stood(self, rounds: int) -> None:
        """See `Stands`."""
        if self._planner is not None:
            self._planner.stood(rounds)

    def learn(self, record: RoundRecord) -> None:
        """See `Chooser.learn`."""
        taken = self._learn_one(record) if len(record.rows) == 1 else self._learn_many(record)
        self._idle = 0 if taken else self._idle + 1
        if self._planner is None or self._settings.model is None:
            return
        model = self._settings.model
        # Only lookups are ever scored where they do not draft.
        self._planner.learn_played(record, None if alike(record.drafter, model) else record.drafter == model)

    def _learn_one(self, record: RoundRecord) -> bool:
        """Whether the offer was taken."""
        which, row = self._settings.lookup, record.rows.item()
        if record.drafter.item() == which and record.depths.item():
            self._streaks.observe_one(row, record.drafted.item(), record.accepted.item())
            return True
        if record.shadow is None or record.shadow_drafted is None:
            self._streaks.observe_one(row, -1, -1)
        else:
            self._streaks.observe_one(row, record.shadow_drafted[which, 0].item(), record.shadow[which, 0].item())
        return False

    def _learn_many(self, record: RoundRecord) -> bool:
        """Whether any offer was taken."""
        which = self._settings.lookup
        ran: BoolArray = (record.drafter == which) & (record.depths > 0)
        reach, got = record.shadow_drafted, record.shadow
        self._streaks.observe(
            record.rows,
            np.where(ran, record.drafted, -1 if reach is None else reach[which]),
            np.where(ran, record.accepted, -1 if got is None else got[which]),
        )
        return bool(ran.any())

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

    def _choose_one(self, plan: Choice, signals: BatchSignals, prices: Prices) -> Choice:
        most = min(signals.offered[self._settings.lookup].item(), signals.limits.item())
        expected = self._streaks.gains_of_one(signals.rows.item())
        known = prices.weighed.get(most)
        if known is None or known.expected is not expected or known.outlook is not plan.outlook:
            known = prices.weighed[most] = _Weighed(expected, plan.outlook, self._weigh(plan, most, expected, prices))
        # A try of the draft model has been paid for by now.
        return plan if known.choice is None or plan.reasons.item() == Reason.EXPLORE else known.choice

    def _weigh(self, plan: Choice, most: int, expected: list[float], prices: Prices) -> Choice | None:
        """The best that can be made of an offer of `most` tokens; None where the plan is better."""
        base, more = prices.round.base, prices.more
        best, depth = prices.goodput, 0
        for tier in self._tiers:
            if tier > most:
                break
            goodput = (base + expected[tier - 1]) / more[tier]
            if goodput > best:
                best, depth = goodput, tier
        return self._taking(plan, depth, Expected(best, np.array(expected[depth - 1 : depth]))) if depth else None

    def _taking(self, plan: Choice, depth: int, expected: Expected) -> Choice:
        """The offer to one row, taken to a depth in place of the plan."""
        lookup = np.array([self._settings.lookup])
        return Choice(np.array([depth]), np.array([int(Reason.POLICY)]), plan.outlook, lookup, expected=expected)

    def _choose_many(self, plan: Choice, signals: BatchSignals, prices: Prices) -> Choice:
        bids = self._bids(plan, signals)
        mix = self._sorted_out(bids, prices)
        taken = mix.taken > 0
        if not taken.any():
            return plan
        return Choice(
            np.where(mix.follows, plan.depths, mix.taken),
            np.where(taken, int(Reason.POLICY), plan.reasons),
            plan.outlook,
            np.where(taken, self._settings.lookup, self._settings.model or 0),
            expected=Expected(mix.goodput, mix.kept),
        )

    @staticmethod
    def _sorted_out(bids: Bids, prices: Prices) -> Mix:
        """Among few rows each offer may call for another way; many average out, and a way serves for some rounds."""
        prices.served += 1
        if prices.way is not None and len(bids.kinds) >= _MANY and prices.served < _WAY_SERVES:
            return mix_again(bids, prices.round, prices.way)
        mix = best_mix(bids, prices.round)
        # A way that takes nothing would not see better offers come.
        prices.way, prices.served = (mix.way if mix.taken.any() else None), 0
        return mix

    def _bids(self, plan: Choice, signals: BatchSignals) -> Bids:
        gains = self._streaks.gains_of_kinds()
        if gains is not self._known:
            self._known, self._offers = gains, OfferTable(gains, self._allowed, PRICES)
        return Bids(self._offers, self._streaks.kinds(signals.rows), self._offered(signals), *hopes(plan))

    def _offered(self, signals: BatchSignals) -> IntArray:
        """How deep each row may take its offer, [B]."""
        offered: IntArray = np.minimum(signals.offered[self._settings.lookup], signals.limits)
        return np.minimum(offered, self.max_depth, out=offered)

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


def hopes(plan: Choice) -> tuple[FloatArray, FloatArray, int, BoolArray | None]:
    """Of a plan: tokens that it is expected to keep and to draft [B], its deepest position, and who must follow it."""
    depths, outlook = plan.depths, plan.outlook
    bound: BoolArray = plan.reasons == int(Reason.EXPLORE)
    told = bound if bound.any() else None
    if outlook is None:
        nothing = np.zeros(len(depths))
        return nothing, nothing, 0, told
    # By what the plan was made for: where depths are caps, drafts to the cap are not what it hopes for.
    if outlook.planned is not None:
        lower = np.minimum(depths, outlook.planned)
        depths = lower if told is None else np.where(bound, depths, lower)
    return outlook.gained[np.arange(len(depths)), depths], outlook.sizes[depths], int(depths.max()), told


@dataclass(frozen=True)
class _Weighed:
    """What was made of an offer of which so much is expected, beside a plan of this outlook."""

    expected: list[float]
    outlook: Outlook | None
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
    weighed: dict[int, _Weighed] = field(default_factory=dict)  # offers to one row, by their size

    @functools.cached_property
    def more(self) -> list[float]:
        """Seconds of a round without draft steps that verifies 0, 1, 2 ... tokens more."""
        more: list[float] = (self.round.overhead + self.round.curve).tolist()
        return more

    def serves(self, plan: Choice, size: int) -> bool:
        """Whether this plan of so many rows rests on them."""
        if self.left <= 0 or self.round.base != size:
            return False
        # A plan laid out for other rows has an outlook of its own, but the prices are those of the plan.
        mine, its = self.outlook, plan.outlook
        return mine is its or (mine is not None and its is not None and mine.verify is its.verify)

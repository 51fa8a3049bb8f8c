"""Goodput with a lookup at hand: in every round and row, whatever is expected to earn more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from adaptspec.control.arrays import alike, some
from adaptspec.control.choosers.as_played import as_played
from adaptspec.control.choosers.chooser import Choice, Outlook
from adaptspec.control.choosers.goodput import Goodput
from adaptspec.control.choosers.streaks import Streaks
from adaptspec.control.cost import CostTable
from adaptspec.control.learned import counts
from adaptspec.control.policy import BatchSignals
from adaptspec.types import BoolArray, Expected, FloatArray, IntArray, Reason, RoundRecord


@dataclass(frozen=True)
class LookupSettings:
    """`lookup` and `model`: their places among the policy's drafters; no model: None. `tiers`: depths allowed."""

    lookup: int
    model: int | None
    tiers: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7)


class LookupGoodput:
    """Per row argmax over {what `Goodput` plans with the draft model, a draft of the lookup of any allowed depth}.

    What a lookup found is known before the round, and looking is free. So it is not an arm to be learned about: a row
    takes its offer where expected tokens less the worth of the time they take, at the goodput of the plan without
    it, exceed what the plan earns with that row. For one row this is the better of two ratios. What an offer brings is
    expected by how often in a row the lookup was right (see `Streaks`); it is scored in every round, taken or not.

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
        self._others: IntArray = np.zeros(0, dtype=np.int64)
        self._prices: Prices | None = None

    @property
    def watches_offers(self) -> bool:
        """See `OfferWatcher`."""
        return self.max_depth > 0

    def start(self, row: int, task: int) -> None:
        """See `Chooser.start`."""
        self._streaks.start(row, task)
        if self._planner is not None:
            self._planner.start(row, task)

    def finish(self, row: int) -> None:
        """See `Chooser.finish`."""
        if self._planner is not None:
            self._planner.finish(row)

    def choose(self, signals: BatchSignals) -> Choice:
        """See `Chooser.choose`."""
        plan = self._plan(signals)
        if not self.max_depth:
            return plan
        offered = signals.offered[self._settings.lookup]
        if not some(offered):
            return plan
        prices = self._priced(plan, signals)
        if len(offered) == 1:
            return self._choose_one(plan, signals, prices)
        return self._choose_many(plan, signals, prices)

    def learn(self, record: RoundRecord) -> None:
        """See `Chooser.learn`."""
        if len(record.rows) == 1:
            self._learn_one(record)
        else:
            self._learn_many(record)
        if self._planner is not None and self._settings.model is not None:
            if not alike(record.drafter, self._settings.model):
                record = as_played(
                    replace(record, shadow=None, shadow_drafted=None), self._settings.model, self.max_depth
                )
            self._planner.learn_played(record)

    def _learn_one(self, record: RoundRecord) -> None:
        which, row = self._settings.lookup, record.rows.item()
        if record.drafter.item() == which and record.depths.item():
            self._streaks.observe_one(row, record.drafted.item(), record.accepted.item())
        elif record.shadow is not None and record.shadow_drafted is not None:
            self._streaks.observe_one(row, record.shadow_drafted[which, 0].item(), record.shadow[which, 0].item())

    def _learn_many(self, record: RoundRecord) -> None:
        which = self._settings.lookup
        ran = (record.drafter == which) & (record.depths > 0)
        drafted, right = np.where(ran, record.drafted, 0), np.where(ran, record.accepted, 0)
        if record.shadow is not None and record.shadow_drafted is not None:
            scored = ~ran & (record.shadow[which] >= 0)
            drafted = np.where(scored, record.shadow_drafted[which], drafted)
            right = np.where(scored, record.shadow[which], right)
        self._streaks.observe(record.rows, drafted, right)

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
            nothing: IntArray = np.zeros(size, dtype=np.int64)
            return Choice(nothing, np.full(size, int(Reason.OFF), dtype=np.int64))
        if not model:
            return self._planner.choose(signals)
        if len(self._others) != size:
            self._others = np.full(size, model, dtype=np.int64)
        return replace(self._planner.choose(replace(signals, lag=signals.lag[model:])), drafter=self._others)

    def _choose_one(self, plan: Choice, signals: BatchSignals, prices: Prices) -> Choice:
        most = min(signals.offered[self._settings.lookup].item(), signals.limits.item())
        expected = self._streaks.gains_of_one(signals.rows.item())
        best, depth = prices.goodput, 0
        for tier in self._tiers:
            if tier > most:
                break
            goodput = (prices.base + expected[tier - 1]) / (prices.drafting + prices.more[tier])
            if goodput > best:
                best, depth = goodput, tier
        # A try of the draft model has been paid for by now.
        if not depth or plan.reasons.item() == Reason.EXPLORE:
            return plan
        return Choice(
            np.array([depth]),
            np.array([int(Reason.POLICY)]),
            plan.outlook,
            np.array([self._settings.lookup]),
            expected=Expected(best, np.array(expected[depth - 1 : depth])),
        )

    def _choose_many(self, plan: Choice, signals: BatchSignals, prices: Prices) -> Choice:
        planned = int(plan.depths.sum())
        expected, worth, depth = self._offers(plan, signals, prices)
        taken = worth > self._worth_of_plan(plan, prices)
        taken &= plan.reasons != Reason.EXPLORE
        if not planned and taken.any():
            # Nobody drafts otherwise: all offers together must pay for this being a round with drafts.
            gain = float(worth[taken].sum())
            taken &= gain > prices.goodput * (prices.drafting - prices.plain)
        if not taken.any():
            return plan
        model = self._settings.model or 0
        return Choice(
            np.where(taken, depth + 1, plan.depths),
            np.where(taken, int(Reason.POLICY), plan.reasons),
            plan.outlook,
            np.where(taken, self._settings.lookup, model),
            expected=Expected(
                prices.goodput, np.where(taken, expected[np.arange(len(depth)), depth], self._kept(plan))
            ),
        )

    def _offers(self, plan: Choice, signals: BatchSignals, prices: Prices) -> tuple[FloatArray, FloatArray, IntArray]:
        """Tokens [B, depth] that drafts of the lookup are expected to bring; what the best of those that it offers

        nets [B], -inf where it offers none, and that one's depth less 1 [B].
        """
        most = np.minimum(signals.offered[self._settings.lookup], signals.limits)
        expected = self._streaks.gains(signals.rows)
        # What is verified beside a row's offer is what the plan has drafted for the others.
        beside = np.minimum(int(plan.depths.sum()) - plan.depths, len(prices.curve) - 1)
        at = np.minimum(beside[:, None] + np.arange(self.max_depth + 1), len(prices.curve) - 1)
        seconds = prices.curve[at[:, 1:]] - prices.curve[at[:, :1]]
        allowed = self._allowed & (np.arange(1, self.max_depth + 1) <= most[:, None])
        worth = np.where(allowed, expected - prices.goodput * seconds, -np.inf)
        depth = np.argmax(worth, axis=1)
        return expected, worth[np.arange(len(depth)), depth], depth

    @staticmethod
    def _worth_of_plan(plan: Choice, prices: Prices) -> FloatArray:
        """What the plan nets with each row [B], in tokens: its advantage over plain decoding, by expected gain."""
        drafting = plan.depths > 0
        if plan.outlook is None or not drafting.any():
            return np.zeros(len(drafting))
        gains = LookupGoodput._kept(plan)
        net = max(0.0, prices.goodput * prices.plain - prices.base)
        worth: FloatArray = net * gains / max(float(gains.sum()), 1e-9)
        return worth

    @staticmethod
    def _kept(plan: Choice) -> FloatArray:
        """Drafted tokens that the plan expects to be kept, [B]."""
        if plan.outlook is None:
            return np.zeros(len(plan.depths))
        kept: FloatArray = plan.outlook.gained[np.arange(len(plan.depths)), plan.depths]
        return kept

    def _priced(self, plan: Choice, signals: BatchSignals) -> Prices:
        size = signals.round_size
        known = self._prices
        if known is not None and known.serves(plan, size):
            known.left -= 1
            return known
        cost, context = self._cost, float(signals.context.sum())
        plain = cost.plain_seconds(size, context)
        more = cost.overhead_seconds(size, drafting=True) - cost.overhead_seconds(size, drafting=False)
        tokens = size + np.arange(len(signals.rows) * self.max_depth + 1, dtype=np.float64)
        curve = cost.verify_curve(size, tokens, context)
        curve = curve - curve[0]
        goodput = size / plain if plan.outlook is None else plan.outlook.goodput
        self._prices = Prices(float(size), plain, plain + more, curve, goodput, plan.outlook)
        return self._prices


@dataclass
class Prices:
    """What a round takes, in seconds, and the goodput of the plan without offers; good for some rounds."""

    base: float  # tokens emitted anyway
    plain: float  # a round without drafts
    drafting: float  # the same with the overhead of a round with drafts
    curve: FloatArray  # of verifying 0, 1, 2 ... tokens more
    goodput: float
    outlook: Outlook | None
    left: int = 16  # rounds

    def __post_init__(self) -> None:
        self.more: list[float] = self.curve.tolist()

    def serves(self, plan: Choice, size: int) -> bool:
        """Whether this plan of so many rows rests on them."""
        return self.left > 0 and plan.outlook is self.outlook and self.base == size

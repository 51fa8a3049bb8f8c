"""The default: who drafts how deep for each row of a batch, chosen jointly at one price: tokens per second."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from adaptspec.control.acceptance import AcceptanceSettings, LookupSignals, ModelSignals, lot_of
from adaptspec.control.arrays import total
from adaptspec.control.calibration import Calibration
from adaptspec.control.choosers.chooser import Choice, Outlook
from adaptspec.control.choosers.pacing import Market
from adaptspec.control.choosers.planning import ModelTerms, Offer, RoundTerms, best_plan, mixed, modelled
from adaptspec.control.choosers.tries import Tries, TryCosts
from adaptspec.control.cost import CostTable
from adaptspec.control.policy import BatchSignals
from adaptspec.types import BoolArray, Expected, FloatArray, IntArray, Reason, RoundRecord

LOOKUPS = frozenset({"ngram"})
# A plan serves this many rounds; the first ones fewer.
_SERVES = 16
# One row in so many may be new to a plan, or gone.
_FEW = 8
# What was seen too rarely is never hoped to be surer than this.
_HOPED = 0.98


@dataclass(frozen=True)
class GoodputSettings:
    """`tiers`: depths allowed beside 0. `stops`: a stop rule will cut drafts, so depths are caps that leave it room."""

    tiers: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7)
    drafters: tuple[str, ...] = ("draft-model",)
    acceptance: AcceptanceSettings = field(default_factory=AcceptanceSettings)
    stops: bool = True
    horizon_rounds: float = 32.0  # catching up is spread over so many rounds
    optimism: float = 0.1  # added to acceptance: optimism / sqrt(1 + times seen)
    tries: float = 0.01  # share of time that may be lost on trying what is off


@dataclass
class _Plan:
    """Depths at one price. It serves some rounds; rows that join are judged at the same price."""

    goodput: float
    line: FloatArray  # [D + 1] seconds that verifying n tokens more of one row adds
    deepest: dict[int, int]  # by drafter that the plan enters
    market: RoundTerms
    left: int
    price: float  # the goodput of the last round with offers
    share: dict[int, float] = field(default_factory=dict)  # by drafter, a row's share of the seconds of its steps
    outlook: Outlook | None = None
    known: dict[tuple[int, ...], Choice] = field(default_factory=dict)  # choices for a single row
    rows: bytes = b""
    choice: Choice | None = None


class Goodput:
    """argmax over depths and drafters of (B + tokens expected to be kept) / T(draft passes, their rows, verify tokens).

    Solved by Dinkelbach's iteration: guess the price (goodput), let every row take what earns most beyond the price,
    recompute, repeat. A drafter that runs a model is entered only if what it adds pays for its steps, which all rows
    share; every subset of them is tried. What a lookup found is known before the round and taken at the same price.

    Exploration: prices are hopeful where costs are unsure, acceptance where little was seen. Rows that are off are
    tried from an allowance of 1 % of time; when it has gone unused for some tokens all of them are, whatever that is
    expected to cost. Source: AdaptSpec design; the objective is vLLM's and SmartSpec's goodput (Liu et al. 2024,
    "Optimizing Speculative Decoding for Serving Large Language Models Using Goodput").
    """

    def __init__(self, cost: CostTable, rows: int, tasks: int, settings: GoodputSettings = GoodputSettings()) -> None:
        """`tasks` counts the known tasks and task 0, unknown."""
        self._cost = cost
        self._settings = settings
        tiers = sorted(set(settings.tiers) - {0})
        self.max_depth = depth = tiers[-1] if tiers else 0
        self._tiers = tiers
        self._allowed: BoolArray = np.isin(np.arange(depth + 1), [0, *tiers])
        names = list(enumerate(settings.drafters))
        self._models = {i: ModelSignals(rows, tasks, depth, settings.acceptance) for i, n in names if n not in LOOKUPS}
        self._modelled: BoolArray = np.array([name not in LOOKUPS for name in settings.drafters])
        self._lookups = {i: LookupSignals(rows, tasks, depth, settings.acceptance) for i, n in names if n in LOOKUPS}
        self._depth: IntArray = np.full(rows, -1, dtype=np.int64)  # planned with a model, by row; -1: not yet
        self._bids: FloatArray = np.zeros((3, rows))  # what it is expected to keep, draft, and take beside verifying
        self._who: IntArray = np.zeros(rows, dtype=np.int64)
        self._plan: _Plan | None = None
        self._patience = 1  # rounds that the next plan serves
        self._noted: list[RoundRecord] = []
        self._tries = Tries(settings.tries)
        self._trying: int | None = None  # the model that rows of this round try
        self._turn = 0  # whose turn it is to be tried: a model's that lost ends

    @property
    def calibration(self) -> Calibration | None:
        """What the first model's confidence says; None where there is no model."""
        return next((model.calibration for model in self._models.values()), None)

    @property
    def watches_offers(self) -> bool:
        """See `OfferWatcher`."""
        return bool(self._lookups) and self.max_depth > 0

    @property
    def looking(self) -> bool:
        """See `OfferWatcher`."""
        return True

    def start(self, row: int, task: int) -> None:
        """See `Chooser.start`."""
        self._settle()
        self._depth[row] = -1
        self._tries.forget(row)
        if self._plan is not None:
            self._plan.rows = b""
            self._patience = min(self._patience, self._plan.market.size)
        for _, part in self._parts():
            part.start(row, task)

    def finish(self, row: int) -> None:
        """See `Chooser.finish`."""

    def choose(self, signals: BatchSignals) -> Choice:
        """See `Chooser.choose`."""
        if not self.max_depth:
            return Choice(np.zeros_like(signals.rows), np.full_like(signals.rows, int(Reason.OFF)))
        plan = self._plan
        if plan is None or plan.left <= 0 or not self._serves(plan, signals):
            plan = self._plan = self._planned(signals)
        self._trying = None
        choice = self._one(plan, signals) if len(signals.rows) == 1 else self._many(plan, signals)
        if self._models and (choice.depths.item() == 0 if len(choice.depths) == 1 else not choice.depths.all()):
            choice = self._tried(plan, choice, signals)
        return choice if signals.least_limit >= self.max_depth else choice.within(signals.limits)

    def learn(self, record: RoundRecord) -> None:
        """See `Chooser.learn`."""
        for which, lookup in self._lookups.items():
            self._score(which, lookup, record)
        self._noted.append(record)
        plan = self._plan
        if plan is not None:
            plan.left -= 1
        drafting = record.drafting and bool(self._modelled[record.drafter[record.drafted > 0]].any())
        if plan is not None:
            self._tries.note(record.total_seconds, plan.market.plain, 0 if drafting else total(record.emitted))
            if self._trying is not None:
                reading = self._cost.catch_up_seconds(self._settings.drafters[self._trying], float(record.caught_up))
                if self._tries.won(record, reading, plan.market.plain / plan.market.size):
                    plan.left = 0
                self._turn += not self._tries.going

    def learned(self) -> dict[str, FloatArray]:
        """See `Chooser.learned`."""
        self._settle()
        return {name + end: values for end, part in self._parts() for name, values in part.learned().items()}

    def restore(self, learned: Mapping[str, FloatArray]) -> None:
        """See `Chooser.restore`."""
        for end, part in self._parts():
            part.restore({name: learned[name + end] for name in part.learned() if name + end in learned})
        self._plan = None

    def _parts(self) -> Iterator[tuple[str, ModelSignals | LookupSignals]]:
        """What is known of each drafter, and what the names of it end with: nothing for the first of its kind."""
        yield from ((_ending(place), part) for place, part in enumerate(self._models.values()))
        yield from ((_ending(place), part) for place, part in enumerate(self._lookups.values()))

    def _settle(self) -> None:
        """Learn what was noted."""
        if not self._noted:
            return
        lot = lot_of(self._noted, self.max_depth)
        self._noted.clear()
        for which, model in self._models.items():
            model.observe(lot, (lot.drafter == which) & (lot.depths > 0))
        for lookup in self._lookups.values():
            lookup.settle()

    @staticmethod
    def _score(which: int, lookup: LookupSignals, record: RoundRecord) -> None:
        """What a lookup found counts whether or not it was taken."""
        if len(record.rows) == 1:
            lookup.note_one(record.rows.item(), *_scored_one(which, record))
            return
        ran = (record.drafter == which) & (record.depths > 0)
        nobody = np.full(len(ran), -1)
        found = nobody if record.shadow_drafted is None else record.shadow_drafted[which]
        right = nobody if record.shadow is None else record.shadow[which]
        # Beyond the token that the round would have yielded anyway.
        lookup.note(record.rows, np.where(ran, record.drafted, found), np.where(ran, record.emitted - 1, right))

    def _serves(self, plan: _Plan, signals: BatchSignals) -> bool:
        rows, size = signals.rows, signals.round_size
        if abs(size - plan.market.size) * _FEW > plan.market.size:
            return False
        if len(rows) == 1:
            return self._depth.item(rows.item()) >= 0
        return int(np.count_nonzero(self._depth[rows] < 0)) * _FEW <= len(rows)

    # --- planning -----------------------------------------------------------------------------------------------

    def _planned(self, signals: BatchSignals) -> _Plan:
        """A new plan for these rows."""
        self._settle()
        market = self._market(signals)
        best = best_plan(market)
        plan = _Plan(best.goodput, best.line, best.deepest, market, self._patience, best.goodput, best.share)
        self._patience = min(2 * self._patience, _SERVES)
        self._seat(plan, signals.rows, np.ones(len(signals.rows), dtype=np.bool_))
        return plan

    def _seat(self, plan: _Plan, rows: IntArray, new: BoolArray) -> None:
        """Rows [B], of which some are new to the plan, do what it says."""
        depth, _, who, bids = modelled(plan.market, plan.deepest, plan.goodput, plan.line, plan.share)
        fresh = rows[new]
        self._depth[fresh], self._who[fresh], self._bids[:, fresh] = depth[new], who[new], bids[:, new]
        plan.rows, plan.choice = rows.tobytes(), None
        plan.outlook = self._outlook(plan, rows)

    def _market(self, signals: BatchSignals) -> RoundTerms:
        cost, size, depth = self._cost, signals.round_size, self.max_depth
        context = float(signals.context.sum())
        verify = cost.verify_line(size, len(signals.rows) * depth, context, hoped=True)
        plain = cost.plain_seconds(size, context)
        fits = self._allowed & (np.arange(depth + 1) <= signals.limits[:, None])
        return RoundTerms(
            size=size,
            plain=plain,
            beside=cost.overhead_seconds(size, drafting=True) - cost.overhead_seconds(size, drafting=False),
            verify=verify - verify[0],
            fits=fits,
            models=tuple(self._model(which, known, signals) for which, known in self._models.items()),
        )

    def market(self, signals: BatchSignals) -> Market:
        """What drafting with the first model brings and costs these rows, by all that was learned so far."""
        self._settle()
        now = self._market(signals)
        model = now.models[0]
        gains = np.diff(model.gains, axis=1)
        return Market(
            gains=gains,
            sizes=np.broadcast_to(model.drafted, gains.shape),
            tiers=np.array(self._tiers),
            limits=signals.limits,
            entry=model.entry,
            base_tokens=float(now.size),
            plain=now.plain,
            overhead=now.plain + now.beside + model.start,
            per_step=model.per_step,
            per_row=model.per_row,
            verify=now.verify,
        )

    def _model(self, which: int, known: ModelSignals, signals: BatchSignals) -> ModelTerms:
        cost, name = self._cost, self._settings.drafters[which]
        sure = known.acceptance.acceptance(signals.rows)
        hope = self._settings.optimism / np.sqrt(1.0 + known.acceptance.seen())
        acceptance = np.minimum(sure + hope, np.maximum(sure, _HOPED))
        kept, drafted = known.continuation.rates()
        per_step, per_row = cost.step_line(name, signals.round_size)
        gains = np.cumsum(acceptance.cumprod(axis=1) * kept, axis=1)
        return ModelTerms(
            which,
            acceptance,
            np.concatenate((np.zeros((len(gains), 1)), gains), axis=1),
            np.concatenate(([0.0], np.cumsum(drafted))),
            kept,
            drafted,
            per_step,
            per_row,
            cost.start_seconds(name),
            cost.catch_up_seconds(name, 1.0) * signals.lag[which] / self._settings.horizon_rounds,
        )

    def _outlook(self, plan: _Plan, rows: IntArray) -> Outlook | None:
        market = plan.market
        if not market.models:
            return None
        first = market.models[0]
        return Outlook(
            plan.goodput,
            first.acceptance,
            first.per_step,
            first.per_row,
            market.verify,
            self._models[first.which].calibration.factors(rows),
            first.kept,
            first.drafted,
            planned=self._depth[rows],
        )

    # --- one row ------------------------------------------------------------------------------------------------

    def _one(self, plan: _Plan, signals: BatchSignals) -> Choice:
        row = signals.rows.item()
        key = [self._depth.item(row)]
        for which, lookup in self._lookups.items():
            found = signals.offered[which, 0].item()
            key += (found, lookup.kind(row)) if found else (0, 0)
        at = tuple(key)
        known = plan.known.get(at)
        if known is None:
            known = plan.known[at] = self._many(plan, signals)
        return known

    # --- many rows ----------------------------------------------------------------------------------------------

    def _many(self, plan: _Plan, signals: BatchSignals) -> Choice:
        """Each row does what earns most beyond the plan's price."""
        rows = signals.rows
        new = self._depth[rows] < 0
        if new.any() or plan.rows != rows.tobytes():
            plan.market = self._market(signals)
            self._seat(plan, rows, new)
        offered = [which for which in self._lookups if signals.offered[which].any()]
        if not offered and plan.choice is not None:
            return plan.choice
        depth, who, bids = self._depth[rows], self._who[rows], self._bids[:, rows]
        capped = np.where(depth > 0, self.max_depth, 0) if self._capped else depth
        if offered:
            mix = mixed(plan.market, bids, self._offers(signals), plan.price)
            plan.price, bids = mix.price, mix.bids
            capped, who = np.where(mix.taken > 0, mix.taken, capped), np.where(mix.taken > 0, mix.whose, who)
        reasons = np.where(capped > 0, int(Reason.POLICY), int(Reason.OFF))
        choice = Choice(capped, reasons, plan.outlook, who, expected=Expected(plan.price, bids[0]))
        if not offered:
            plan.choice = choice
        return choice

    def _offers(self, signals: BatchSignals) -> list[Offer]:
        n = np.arange(self.max_depth + 1)
        return [
            Offer(
                which,
                lookup.gains[lookup.kinds(signals.rows)],
                self._allowed & (n <= signals.offered[which][:, None]),
                self._cost.lookup_seconds(self._settings.drafters[which]),
            )
            for which, lookup in self._lookups.items()
        ]

    @property
    def _capped(self) -> bool:
        calibration = self.calibration
        return self._settings.stops and calibration is not None and calibration.informed

    # --- exploration --------------------------------------------------------------------------------------------

    def _tried(self, plan: _Plan, choice: Choice, signals: BatchSignals) -> Choice:
        """The choice, with some rows that are off drafting one token, where tries can be paid for."""
        market = plan.market
        model = market.models[self._turn % len(market.models)]
        which, known = model.which, self._models[model.which]
        fixed = 0.0 if plan.deepest else model.per_step + model.start + market.beside
        each = model.per_row + float(market.verify[1])
        if not self._tries.possible(fixed + each):
            return choice
        idle = np.flatnonzero((choice.depths == 0) & (signals.limits >= self._tiers[0]))
        if not len(idle):
            return choice
        costs = TryCosts(
            fixed,
            each,
            model.entry[idle] * self._settings.horizon_rounds,
            market.plain,
        )
        who = idle[self._tries.begin(signals.rows[idle], known.acceptance.rejections(signals.rows[idle]), costs)]
        if not len(who):
            return choice
        self._trying = which
        depths, reasons = choice.depths.copy(), choice.reasons.copy()
        drafter = np.zeros_like(depths) if choice.drafter is None else choice.drafter.copy()
        depths[who], reasons[who], drafter[who] = self._tiers[0], int(Reason.EXPLORE), which
        return Choice(depths, reasons, choice.outlook, drafter)


def _ending(place: int) -> str:
    return f"-{place + 1}" if place else ""


def _scored_one(which: int, record: RoundRecord) -> tuple[int, int]:
    """Tokens that a lookup found for the one row, and how many of them were right; -1: nobody looked."""
    if record.drafter.item() == which and record.depths.item() > 0:
        return record.drafted.item(), record.emitted.item() - 1
    if record.shadow is None or record.shadow_drafted is None:
        return -1, -1
    return record.shadow_drafted[which, 0].item(), record.shadow[which, 0].item()

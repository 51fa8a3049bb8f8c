"""The default: who drafts how deep for each row of a batch, chosen jointly at one price: tokens per second."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from adaptspec.control.acceptance import AcceptanceSettings, Calibration, LookupSignals, ModelSignals, Notes
from adaptspec.control.arrays import some
from adaptspec.control.choosers.chooser import Choice, Outlook
from adaptspec.control.choosers.exploration import Exploration
from adaptspec.control.choosers.planning import (
    ModelTerms,
    Offer,
    RoundTerms,
    best_plan,
    drafting_goodput,
    mixed,
    modelled,
)
from adaptspec.control.copies import changed
from adaptspec.control.cost import CostTable
from adaptspec.control.policy import BatchSignals
from adaptspec.drafters import Kind, kind_of
from adaptspec.types import BoolArray, Expected, FloatArray, IntArray, Reason, RoundRecord

# A plan serves this many rounds; those of new requests fewer, those without drafts more: rounds are shortest there, and
# a try that wins ends them.
_SERVES, _FIRST_SERVE, _OFF_SERVES = 32, 4, 4
# After so many rounds in which lookups found nothing right they look in one of some rounds: looking takes time, too.
_LOOKS_IN_VAIN, _LOOKS_EVERY = 16, 4
# One row in so many may be new to a plan, or gone.
_FEW = 8


@dataclass(frozen=True)
class GoodputSettings:
    """`tiers`: depths allowed beside 0. `stops`: a stop rule will cut drafts, so depths are caps that leave it room."""

    tiers: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7)
    drafters: tuple[str, ...] = ("draft-model",)
    acceptance: AcceptanceSettings = field(default_factory=AcceptanceSettings)
    stops: bool = True
    horizon_rounds: float = 32.0  # catching up is spread over so many rounds
    optimism: float = 0.1  # added to acceptance: optimism / sqrt(1 + times seen)
    tries: float = 0.005  # share of time that may be lost on trying what is off


@dataclass
class _Plan:
    """Depths at one price. It serves some rounds; rows that join are judged at the same price."""

    goodput: float
    line: FloatArray  # [D + 1] seconds that verifying n tokens more of one row adds
    deepest: dict[int, int]  # by drafter that the plan enters
    terms: RoundTerms
    left: int
    price: float  # the goodput of the last round with offers
    share: dict[int, float] = field(default_factory=dict)  # by drafter, a row's share of the seconds of its steps
    drafts: float | None = None  # goodput of the best drafts, once a round without any has asked
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
    tried from an allowance of half a percent of time; when it has gone unused for some tokens all of them are, whatever
    that is expected to cost.

    Source: AdaptSpec design; the objective is vLLM's and SmartSpec's goodput (Liu et al. 2024, "Optimizing Speculative
    Decoding for Serving Large Language Models Using Goodput").
    """

    def __init__(self, cost: CostTable, rows: int, tasks: int, settings: GoodputSettings = GoodputSettings()) -> None:
        """`tasks` counts the known tasks and task 0, unknown."""
        self._cost = cost
        self._settings = settings
        tiers = sorted(set(settings.tiers) - {0})
        self.max_depth = depth = tiers[-1] if tiers else 0
        self._allowed: BoolArray = np.isin(np.arange(depth + 1), [0, *tiers])
        names = list(enumerate(settings.drafters))
        lookups = {name for name in settings.drafters if kind_of(name) is Kind.LOOKUP}
        self._models = {i: ModelSignals(rows, tasks, depth, settings.acceptance) for i, n in names if n not in lookups}
        self._lookups = {i: LookupSignals(rows, tasks, depth) for i, n in names if n in lookups}
        self._depth: IntArray = np.full(rows, -1, dtype=np.int64)  # planned with a model, by row; -1: not yet
        self._bids: FloatArray = np.zeros((3, rows))  # what it is expected to keep, draft, and take beside verifying
        # What is expected of each model by row, as planned.
        self._terms_of: dict[int, dict[str, FloatArray]] = {
            which: {
                "acceptance": np.zeros((rows, depth)),
                "gains": np.zeros((rows, depth + 1)),
                "calibration": model.calibration.acceptance.acceptance(*np.zeros((2, rows), dtype=np.int64)),
            }
            for which, model in self._models.items()
        }
        self._who: IntArray = np.zeros(rows, dtype=np.int64)
        self._plan: _Plan | None = None
        self._patience = 1  # rounds that the next plan serves
        self._notes = Notes(rows, depth)
        models = {i: settings.drafters[i] for i in self._models}
        self._exploration = Exploration(settings.tries, cost, models, tiers)
        self._in_vain = 0  # rounds in which no lookup was right

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
        """See `OfferWatcher`. Every round while looking finds what is right, else one in some."""
        return self._in_vain < _LOOKS_IN_VAIN or self._in_vain % _LOOKS_EVERY == 0

    def start(self, row: int) -> None:
        """See `Chooser.start`."""
        self._depth[row] = -1
        self._notes.start(row)
        self._exploration.forget(row)
        plan = self._plan
        if plan is not None:
            plan.rows = b""
            if plan.deepest:  # else nothing is seen of the new row, but by tries
                self._patience = min(self._patience, _FIRST_SERVE * plan.terms.size)
        for model in self._models.values():
            model.start(row)
        for lookup in self._lookups.values():
            lookup.start(row)

    def finish(self, row: int) -> None:
        """See `Chooser.finish`."""

    def choose(self, signals: BatchSignals) -> Choice:
        """See `Chooser.choose`."""
        if not self.max_depth:
            return Choice(np.zeros_like(signals.rows), np.full_like(signals.rows, int(Reason.OFF)))
        self._notes.decided(signals.number)
        plan = self._current(signals)
        choice = self._one(plan, signals) if len(signals.rows) == 1 else self._many(plan, signals)
        if self._models:
            choice = self._exploration.explored(choice, plan.terms, plan.deepest, signals)
        return choice if signals.least_limit >= self.max_depth else choice.within(signals.limits)

    def outlook(self, signals: BatchSignals) -> Outlook | None:
        """What it would expect of a round of these rows, for a chooser that expects nothing; None without a model."""
        self._notes.decided(signals.number)
        plan = self._current(signals)
        self._seated(plan, signals)
        return plan.outlook

    def learn(self, record: RoundRecord) -> None:
        """See `Chooser.learn`."""
        if not self.max_depth:
            return
        self._notes.note(record)
        if self._notes.many:  # no plan was made for long
            self._settle()
        right = [self._score(which, lookup, record) for which, lookup in self._lookups.items()]
        self._in_vain = 0 if any(right) else self._in_vain + 1
        plan = self._plan
        if plan is None:
            return
        plan.left -= 1
        if self._exploration.learn(record, plan.terms) and not plan.deepest:
            plan.left = 0

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
        lot = self._notes.taken()
        if lot is not None:
            for which, model in self._models.items():
                model.observe(lot, (lot.drafter == which) & (lot.depths > 0))
        for lookup in self._lookups.values():
            lookup.settle()

    @staticmethod
    def _score(which: int, lookup: LookupSignals, record: RoundRecord) -> bool:
        """What a lookup found counts whether or not it was taken, beyond the token that came anyway.

        Returns whether any of it was right.
        """
        if len(record.rows) == 1:
            seen = _scored_one(which, record)
            lookup.note_one(record.rows.item(), record.tasks, *seen)
            return seen[1] > 0
        ran = (record.drafter == which) & (record.depths > 0)
        nobody = np.full(len(ran), -1)
        found = nobody if record.shadow_drafted is None else record.shadow_drafted[which]
        right = nobody if record.shadow is None else record.shadow[which]
        found, right = np.where(ran, record.drafted, found), np.where(ran, record.emitted - 1, right)
        lookup.note(record.rows, record.tasks, found, right)
        return bool(np.count_nonzero(right > 0))

    def _serves(self, plan: _Plan, signals: BatchSignals) -> bool:
        rows, size = signals.rows, signals.round_size
        if abs(size - plan.terms.size) * _FEW > plan.terms.size:
            return False
        if len(rows) == 1:
            return self._depth.item(rows.item()) >= 0
        return int(np.count_nonzero(self._depth[rows] < 0)) * _FEW <= len(rows)

    # --- planning -----------------------------------------------------------------------------------------------

    def _current(self, signals: BatchSignals) -> _Plan:
        """The plan that serves, or a new one."""
        plan = self._plan
        if plan is None or plan.left <= 0 or not self._serves(plan, signals):
            plan = self._plan = self._planned(signals)
        return plan

    def _seated(self, plan: _Plan, signals: BatchSignals) -> None:
        """Judge rows that are new to a plan by its price."""
        rows = signals.rows
        if plan.rows != rows.tobytes():
            new = np.flatnonzero(self._depth[rows] < 0)
            if len(new):
                part = signals.take(new)
                self._seat(plan, replace(plan.terms, fits=self._fits(part), models=self._model_terms(part)), part.rows)
            self._stand(plan, rows)

    def _planned(self, signals: BatchSignals) -> _Plan:
        """A new plan for these rows."""
        self._settle()
        self._exploration.renew()
        terms = self._round_terms(signals)
        best = best_plan(terms)
        serves = self._patience * (1 if best.deepest else _OFF_SERVES)
        plan = _Plan(best.goodput, best.line, best.deepest, terms, serves, best.goodput, best.share)
        self._patience = min(2 * self._patience, _SERVES)
        self._seat(plan, terms, signals.rows)
        self._stand(plan, signals.rows)
        return plan

    def _seat(self, plan: _Plan, terms: RoundTerms, rows: IntArray) -> None:
        """These rows [B], which `terms` is of, do from now on what the plan says."""
        self._depth[rows], _, self._who[rows], self._bids[:, rows] = modelled(
            terms, plan.deepest, plan.goodput, plan.line, plan.share
        )
        for model in terms.models:
            for name, values in self._terms_of[model.which].items():
                values[rows] = getattr(model, name)

    def _stand(self, plan: _Plan, rows: IntArray) -> None:
        """The plan is for these rows [B], all of which have been seated."""
        plan.rows, plan.choice = rows.tobytes(), None
        plan.known.clear()
        plan.outlook = self._outlook(plan, rows)

    def _round_terms(self, signals: BatchSignals) -> RoundTerms:
        cost, size, depth = self._cost, signals.round_size, self.max_depth
        context = float(signals.context.sum())
        verify = cost.verify_line(size, len(signals.rows) * depth, context, hoped=True)
        return RoundTerms(
            size=size,
            plain=cost.plain_seconds(size, context),
            beside=cost.overhead_seconds(size, drafting=True) - cost.overhead_seconds(size, drafting=False),
            verify=verify - verify[0],
            fits=self._fits(signals),
            models=self._model_terms(signals),
        )

    def _fits(self, signals: BatchSignals) -> BoolArray:
        """Depths that each row may draft [B, D + 1]."""
        fits: BoolArray = self._allowed & (np.arange(self.max_depth + 1) <= signals.limits[:, None])
        return fits

    def _model_terms(self, signals: BatchSignals) -> tuple[ModelTerms, ...]:
        return tuple(self._model(which, known, signals) for which, known in self._models.items())

    def terms(self, signals: BatchSignals) -> RoundTerms | None:
        """What drafting brings and costs these rows, by what was known at the last plan; None without a model."""
        return self._round_terms(signals) if self._models and self.max_depth else None

    def _model(self, which: int, known: ModelSignals, signals: BatchSignals) -> ModelTerms:
        cost, name = self._cost, self._settings.drafters[which]
        sure = known.acceptance.acceptance(signals.rows, signals.tasks)
        hope = self._settings.optimism / np.sqrt(1.0 + known.acceptance.seen())
        acceptance = np.minimum(sure + hope, 1.0)
        kept, drafted = known.continuation.rates()
        per_step, per_row = cost.step_line(name, signals.round_size)
        gains = np.cumsum(acceptance.cumprod(axis=1) * kept, axis=1)
        return ModelTerms(
            which,
            acceptance,
            np.concatenate((np.zeros((len(gains), 1)), gains), axis=1),
            np.concatenate(([0.0], np.cumsum(drafted))),
            drafted,
            per_step,
            per_row,
            cost.start_seconds(name),
            cost.catch_up_seconds(name, 1.0) * signals.lag[which] / self._settings.horizon_rounds,
            known.calibration.acceptance.acceptance(signals.rows, signals.tasks),
        )

    def _outlook(self, plan: _Plan, rows: IntArray) -> Outlook | None:
        terms, who = plan.terms, self._who[rows]
        if not terms.models:
            return None
        planned = self._depth[rows] > 0
        drafting = {model.which: int(np.count_nonzero(planned & (who == model.which))) for model in terms.models}
        models = tuple(
            changed(model, **{name: values[rows] for name, values in self._terms_of[model.which].items()})
            for model in terms.models
        )
        return Outlook(plan.goodput, terms.verify, models, drafting)

    # --- one row ------------------------------------------------------------------------------------------------

    def _one(self, plan: _Plan, signals: BatchSignals) -> Choice:
        row = signals.rows.item()
        key = [row, self._depth.item(row)]
        for which, lookup in self._lookups.items():
            found = signals.offered[which, 0].item()
            key += (found, lookup.run.item(row)) if found else (0, 0)
        at = tuple(key)
        known = plan.known.get(at)
        if known is None:
            known = self._many(plan, signals)
            plan.known[at] = known
        return known

    # --- many rows ----------------------------------------------------------------------------------------------

    def _many(self, plan: _Plan, signals: BatchSignals) -> Choice:
        """Each row does what earns most beyond the plan's price."""
        rows = signals.rows
        self._seated(plan, signals)
        offered = [which for which in self._lookups if signals.offered[which].any()]
        if not offered and plan.choice is not None:
            return plan.choice
        depth, who, bids = self._depth[rows], self._who[rows], self._bids[:, rows]
        capped = np.where(depth > 0, self.max_depth, 0) if self._capped else depth
        if offered:
            mix = mixed(plan.terms, bids, self._offers(signals), plan.price)
            plan.price, bids = mix.price, mix.bids
            capped, who = np.where(mix.taken > 0, mix.taken, capped), np.where(mix.taken > 0, mix.whose, who)
        reasons = np.where(capped > 0, int(Reason.POLICY), int(Reason.OFF))
        expected = Expected(plan.price, bids[0], self._other(plan, drafting=some(capped)))
        choice = Choice(capped, reasons, plan.outlook, who, expected=expected)
        if not offered:
            plan.choice = choice
        return choice

    @staticmethod
    def _other(plan: _Plan, *, drafting: bool) -> float:
        """Goodput expected of what was not chosen."""
        if drafting:
            return plan.terms.size / plan.terms.plain
        if plan.drafts is None:
            plan.drafts = drafting_goodput(plan.terms)
        return plan.drafts

    def _offers(self, signals: BatchSignals) -> list[Offer]:
        n = np.arange(self.max_depth + 1)
        return [
            Offer(
                which,
                lookup.gains(signals.rows, signals.tasks),
                self._allowed & (n <= signals.offered[which][:, None]),
                self._cost.lookup_seconds(self._settings.drafters[which]),
            )
            for which, lookup in self._lookups.items()
        ]

    @property
    def _capped(self) -> bool:
        calibration = self.calibration
        return self._settings.stops and calibration is not None and calibration.informed


def _ending(place: int) -> str:
    return f"-{place + 1}" if place else ""


def _scored_one(which: int, record: RoundRecord) -> tuple[int, int]:
    """Tokens that a lookup found for the one row, and how many of them were right; -1: nobody looked."""
    if record.drafter.item() == which and record.depths.item() > 0:
        return record.drafted.item(), record.emitted.item() - 1
    if record.shadow is None or record.shadow_drafted is None:
        return -1, -1
    return record.shadow_drafted.item(which, 0), record.shadow.item(which, 0)

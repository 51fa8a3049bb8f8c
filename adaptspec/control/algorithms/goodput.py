"""The default: who drafts how deep for each row of a batch, chosen jointly at one price: tokens per second."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from adaptspec.control.acceptance import AcceptanceSettings, Calibration, ModelAcceptance, PendingRecords
from adaptspec.control.algorithms.algorithm import Algorithm, AlgorithmSpec, Choice, ExpectedValue, Parts
from adaptspec.control.algorithms.exploration import Exploration
from adaptspec.control.algorithms.planning import (
    NgramProposal,
    Plan,
    allocated,
    best_of,
    best_plan,
    drafting_goodput,
)
from adaptspec.control.algorithms.round_terms import ModelTerms, RoundTerms
from adaptspec.control.cost import CostTable
from adaptspec.control.language.schema import Part
from adaptspec.control.model_free_acceptance import NgramAcceptance, StatedAcceptance
from adaptspec.control.policy import BatchSignals, Learner, Union
from adaptspec.control.rows import some
from adaptspec.drafters import Kind, kind_of, states_confidence
from adaptspec.types import BoolArray, Expected, FloatArray, IntArray, Reason, RoundRecord

# A plan serves this many rounds; those of new requests fewer, those without drafts more: rounds are shortest there, and
# a try that wins ends them.
_SERVES, _FIRST_SERVE, _OFF_SERVES = 32, 4, 4
# After so many decisions by which n-gram drafters found nothing right they look in one of some: it takes time, too.
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
    max_width: int = 1  # children of a node at most; 1: drafts are chains
    horizon_rounds: float = 32.0  # catching up is spread over so many rounds
    optimism: float = 0.1  # added to acceptance: optimism / sqrt(1 + times seen)
    tries: float = 0.005  # share of time that may be lost on trying what is off


class PriorSpec(Part):
    """What is believed before anything was seen."""

    acceptance: float = Field(default=0.6, gt=0.0, lt=1.0, description="Of a drafted token, given those before it.")
    weight: float = Field(default=20.0, gt=0.0, description="In observations.")


_PRIOR = PriorSpec(acceptance=AcceptanceSettings.prior, weight=AcceptanceSettings.prior_weight)


class GoodputSpec(AlgorithmSpec):
    """`choose:` of joint goodput."""

    takes_tiers: ClassVar[bool] = True
    has_value: ClassVar[bool] = True
    takes_drafters: ClassVar[bool] = True
    default_stop: ClassVar[str] = "marginal-goodput"

    algorithm: Literal["goodput"]
    prior: PriorSpec = Field(default=_PRIOR, description="What is believed at first.")
    optimism: float = Field(
        default=GoodputSettings.optimism, ge=0.0, le=2.0, description="Exploration of rarely reached positions."
    )

    def build(self, parts: Parts) -> Goodput:
        acceptance = AcceptanceSettings(self.prior.acceptance, self.prior.weight)
        settings = GoodputSettings(
            parts.tiers,
            parts.drafters,
            acceptance,
            stops=parts.stops,
            max_width=parts.max_width,
            optimism=self.optimism,
        )
        return Goodput(parts.cost, parts.max_rows, parts.tasks, settings)


class Goodput(Algorithm):
    """argmax over depths and drafters of (B + tokens expected to be kept) / T(draft passes, their rows, verify tokens).

    Solved by Dinkelbach's iteration: guess the price (goodput), let every row take what earns most beyond the price,
    recompute, repeat. A drafter that runs a model is entered only if what it adds pays for its steps, which all rows
    share; every subset of them is tried. What an n-gram drafter found is known before the round and taken at the same
    price.

    Exploration: prices are optimistic where costs are unsure, acceptance where little was seen. Rows that are off are
    tried within a budget of half a percent of time; when it has gone unused for some tokens all of them are, whatever
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
        ngram = {i for i, name in enumerate(settings.drafters) if kind_of(name) is Kind.MODEL_FREE}
        models = {i: name for i, name in enumerate(settings.drafters) if i not in ngram}
        self._models = {
            i: ModelAcceptance(rows, tasks, depth, settings.acceptance, branches=settings.max_width > 1) for i in models
        }
        self._ngram = {
            i: (StatedAcceptance if states_confidence(settings.drafters[i]) else NgramAcceptance)(rows, tasks, depth)
            for i in sorted(ngram)
        }
        # By row, as planned: the depth with a model (-1: not yet), which model, and what it is expected to keep, draft
        # and take beside verifying; what is expected of each model.
        self._depth: IntArray = np.full(rows, -1, dtype=np.int64)
        self._who: IntArray = np.zeros(rows, dtype=np.int64)
        self._expected: FloatArray = np.zeros((3, rows))
        self._terms_of: dict[int, dict[str, FloatArray]] = {
            which: {
                "acceptance": np.zeros((rows, depth)),
                "gains": np.zeros((rows, depth + 1)),
                "calibration": model.calibration.acceptance(*np.zeros((2, rows), dtype=np.int64)),
            }
            for which, model in self._models.items()
        }
        self._plan: Plan | None = None
        self._patience = 1  # rounds that the next plan serves
        self._pending = PendingRecords(rows, depth)
        self._exploration = Exploration(settings.tries, cost, models, tiers)
        self._in_vain = self._last_decision = 0  # decisions by which no n-gram drafter was right, and the latest

    @property
    def calibration(self) -> Calibration | None:
        """What the first model's confidence says; None where there is no model."""
        return next((model.calibration for model in self._models.values()), None)

    @property
    def search_depth(self) -> int | None:
        """See `Policy.search_depth`. Every round while n-gram drafters find what is right, else one in some."""
        if not self._ngram or not self.max_depth:
            return None
        looks = self._in_vain < _LOOKS_IN_VAIN or self._in_vain % _LOOKS_EVERY == 0
        return self.max_depth if looks else 0

    def start(self, row: int) -> None:
        self._depth[row] = -1
        self._pending.start(row)
        self._exploration.forget(row)
        plan = self._plan
        if plan is not None:
            plan.rows = b""
            if plan.best.deepest:  # else nothing is seen of the new row, but by tries
                self._patience = min(self._patience, _FIRST_SERVE * plan.terms.size)
        for model in self._models.values():
            model.start(row)
        for ngram in self._ngram.values():
            ngram.start(row)

    def choose(self, signals: BatchSignals) -> Choice:
        if not self.max_depth:
            return Choice(np.zeros_like(signals.rows), np.full_like(signals.rows, int(Reason.OFF)))
        plan = self._current(signals)
        choice = self._of_one(plan, signals) if len(signals.rows) == 1 else self._of_all(plan, signals)
        if self._models:
            choice = self._exploration.explored(choice, plan.terms, plan.best.deepest, signals)
        return choice.within(signals.limits)

    def value(self, signals: BatchSignals) -> ExpectedValue | None:
        """What it would expect of a round of these rows, for an algorithm that knows no costs; None without a model."""
        plan = self._current(signals)
        self._assign(plan, signals)
        return plan.value

    def terms(self, signals: BatchSignals) -> RoundTerms | None:
        """What drafting brings and costs these rows, by what was known at the last plan; None without a model."""
        return self._round_terms(signals) if self._models and self.max_depth else None

    def learn(self, record: RoundRecord) -> None:
        if not self.max_depth:
            return
        if self._pending.add(record):  # no plan was made for long
            self._settle()
        if self._ngram:
            rows = np.where(self._pending.of_rows_now(record), record.rows, -1)
            right = [ngram.note(which, record, rows) for which, ngram in self._ngram.items()]
            another = record.decision != self._last_decision or not record.decision  # not one more round of the last
            self._in_vain, self._last_decision = 0 if any(right) else self._in_vain + another, record.decision
        plan = self._plan
        if plan is not None:
            plan.left -= 1
            if self._exploration.learn(record, plan.terms) and not plan.best.deepest:
                plan.left = 0

    def state(self) -> dict[str, FloatArray]:
        """See `Learner.state`. Names of all but the first drafter of a kind end with its number."""
        self._settle()
        kinds: tuple[Iterable[Learner], ...] = (self._models.values(), self._ngram.values())
        return {
            f"{name}-{place + 1}" if place else name: values
            for kind in kinds
            for place, drafter in enumerate(kind)
            for name, values in drafter.state().items()
        }

    def _settle(self) -> None:
        rounds = self._pending.taken()
        if rounds is not None:
            for which, model in self._models.items():
                model.observe(which, rounds)
        for ngram in self._ngram.values():
            ngram.settle()

    # --- planning -----------------------------------------------------------------------------------------------

    def _current(self, signals: BatchSignals) -> Plan:
        self._pending.decided(signals.number)
        plan = self._plan
        if plan is None or plan.left <= 0 or not self._serves(plan, signals):
            self._settle()
            self._exploration.renew()
            terms = self._round_terms(signals)
            best = best_plan(terms)
            serves = self._patience * (1 if best.deepest else _OFF_SERVES)
            plan = self._plan = Plan(best, terms, serves, best.goodput)
            self._patience = min(2 * self._patience, _SERVES)
            self._depth[signals.rows] = -1
            self._assign(plan, signals, terms)
        return plan

    def _serves(self, plan: Plan, signals: BatchSignals) -> bool:
        rows, size = signals.rows, signals.round_size
        if abs(size - plan.terms.size) * _FEW > plan.terms.size:
            return False
        if len(rows) == 1:
            return self._depth.item(rows.item()) >= 0
        return int(np.count_nonzero(self._depth[rows] < 0)) * _FEW <= len(rows)

    def _assign(self, plan: Plan, signals: BatchSignals, terms: RoundTerms | None = None) -> None:
        """Have rows that are new to a plan do what earns most at its price; `terms` are theirs, if known."""
        rows = signals.rows
        if plan.rows == rows.tobytes():
            return
        new = np.flatnonzero(self._depth[rows] < 0)
        if terms is None and len(new) == 1:
            self._place(plan, signals, new)
        elif len(new):
            part = signals if len(new) == len(rows) else signals.take(new)
            self._decide_for(part, plan, terms)
        plan.rows, plan.choice = rows.tobytes(), None
        plan.known.clear()
        plan.value = self._value_of(plan, rows)

    def _decide_for(self, part: BatchSignals, plan: Plan, terms: RoundTerms | None) -> None:
        best = plan.best
        terms = terms or replace(plan.terms, fits=self._fits(part), models=self._model_terms(part))
        self._depth[part.rows], self._who[part.rows], self._expected[:, part.rows] = best_of(
            terms, best.deepest, best.goodput, best.line, best.share
        )
        for model in terms.models:
            for name, values in self._terms_of[model.which].items():
                values[part.rows] = getattr(model, name)

    def _place(self, plan: Plan, signals: BatchSignals, new: IntArray) -> None:
        """One row that is new does what others did that were new to the plan and alike: what rows learn, plans read."""
        part = signals.take(new)
        row, limit = part.rows.item(), min(part.limits.item(), self.max_depth)
        kind = b"%d %d " % (part.tasks.item(), limit) + part.cache_gap.tobytes()
        known = plan.newcomers.get(kind)
        own = [self._depth, self._who, self._expected.T, *(v for t in self._terms_of.values() for v in t.values())]
        if known is None:
            self._decide_for(part, plan, None)
            plan.newcomers[kind] = [values[row].copy() for values in own]
        else:
            for values, mine in zip(own, known, strict=True):
                values[row] = mine

    def _round_terms(self, signals: BatchSignals) -> RoundTerms:
        return RoundTerms.of(self._cost, signals, self._fits(signals), self._model_terms(signals))

    def _model_terms(self, signals: BatchSignals) -> tuple[ModelTerms, ...]:
        settings = self._settings
        return tuple(
            ModelTerms.of(
                which,
                known,
                self._cost,
                settings.drafters[which],
                signals,
                optimism=settings.optimism,
                horizon=settings.horizon_rounds,
            )
            for which, known in self._models.items()
        )

    def _fits(self, signals: BatchSignals) -> BoolArray:
        """Depths that each row may draft [B, D + 1]."""
        fits: BoolArray = self._allowed & (np.arange(self.max_depth + 1) <= signals.limits[:, None])
        return fits

    def _value_of(self, plan: Plan, rows: IntArray) -> ExpectedValue | None:
        terms, who, planned = plan.terms, self._who[rows], self._depth[rows] > 0
        if not terms.models:
            return None
        drafting = {model.which: int(np.count_nonzero(planned & (who == model.which))) for model in terms.models}
        models = []
        for model in terms.models:
            acceptance, gains, calibration = (values[rows] for values in self._terms_of[model.which].values())
            models.append(replace(model, acceptance=acceptance, gains=gains, calibration=calibration))
        return ExpectedValue(plan.best.goodput, terms.verify, tuple(models), drafting)

    # --- choosing -----------------------------------------------------------------------------------------------

    def _of_one(self, plan: Plan, signals: BatchSignals) -> Choice:
        """The choice for a single row, which is one of few while a plan serves."""
        row = signals.rows.item()
        key: list[int | bytes] = [row, self._depth.item(row)]
        for which, ngram in self._ngram.items():
            tokens = signals.found[which, 0].item()
            key += (tokens, ngram.mark(which, signals)) if tokens else (0, 0)
        at = tuple(key)
        known = plan.known.get(at)
        if known is None:
            known = self._of_all(plan, signals)
            plan.known[at] = known
        return known

    def _of_all(self, plan: Plan, signals: BatchSignals) -> Choice:
        """Each row does what earns most beyond the plan's price."""
        rows = signals.rows
        self._assign(plan, signals)
        union: Union | None = None
        found = [which for which in self._ngram if signals.found[which].any()]
        if not found and plan.choice is not None:
            return plan.choice
        depth, who, expected = self._depth[rows], self._who[rows], self._expected[:, rows]
        capped = np.where(depth > 0, self.max_depth, 0) if self._capped else depth
        if found:
            allocation = allocated(plan.terms, expected, self._gains(rows), self._proposals(signals), plan.price)
            plan.price, expected, taken = allocation.price, allocation.expected, allocation.taken
            alone = (taken > 0) & ~allocation.united
            if allocation.united.any():
                union = Union(allocation.whose, np.where(allocation.united, taken, 0))
            capped, who = np.where(alone, taken, capped), np.where(alone, allocation.whose, who)
        reasons = np.where(capped > 0, int(Reason.POLICY), int(Reason.OFF))
        told = Expected(plan.price, expected[0], self._other(plan, drafting=some(capped)))
        choice = Choice(capped, reasons, plan.value, who, expected=told, union=union)
        if not found:
            plan.choice = choice
        return choice

    @staticmethod
    def _other(plan: Plan, *, drafting: bool) -> float:
        """Goodput expected of what was not chosen."""
        if drafting:
            return plan.terms.size / plan.terms.plain
        if plan.drafts is None:
            plan.drafts = drafting_goodput(plan.terms)
        return plan.drafts

    def _gains(self, rows: IntArray) -> FloatArray | None:
        """What these rows are to keep up to each depth [B, D + 1], as planned; None where nobody may draft beside."""
        if self._settings.max_width < 2 or not some(self._expected[0, rows]):
            return None
        gains: FloatArray = np.zeros((len(rows), self.max_depth + 1))
        depth, who = self._depth[rows], self._who[rows]
        upto = np.minimum(np.arange(self.max_depth + 1), np.maximum(depth, 0)[:, None])
        for which, terms in self._terms_of.items():
            mine = np.flatnonzero((who == which) & (depth > 0))
            gains[mine] = np.take_along_axis(terms["gains"][rows[mine]], upto[mine], axis=1)
        return gains

    def _proposals(self, signals: BatchSignals) -> list[NgramProposal]:
        n = np.arange(self.max_depth + 1)
        return [
            NgramProposal(
                which,
                ngram.likely(which, signals),
                self._allowed & (n <= signals.found[which][:, None]),
                self._cost.ngram_seconds(self._settings.drafters[which]),
            )
            for which, ngram in self._ngram.items()
        ]

    @property
    def _capped(self) -> bool:
        """Whether rows are asked for the deepest draft, which stopping early ends: only where that saves its steps."""
        calibration = self.calibration
        informed = self._settings.stops and calibration is not None and calibration.informed
        return informed and not any(self._cost.drafts_together(name) for name in self._settings.drafters)

"""The default algorithm: drafter and depth of each row, planned jointly for the most tokens per second."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from adaptspec.arrays import BoolArray, FloatArray, IntArray
from adaptspec.control.acceptance import AcceptanceSettings, ModelAcceptance, RecordBuffer
from adaptspec.control.algorithms.algorithm import Algorithm, AlgorithmSpec, Choice, ExpectedValue, Parts
from adaptspec.control.algorithms.planning import Plan, best_plan, drafting_goodput, with_lookups
from adaptspec.control.algorithms.round_terms import LookupTerms, ModelTerms, RoundTerms
from adaptspec.control.cost_model import CostModel
from adaptspec.control.explorer import Explorer, Trial
from adaptspec.control.language.schema import Part
from adaptspec.control.model_free_acceptance import LookupAcceptance
from adaptspec.control.policy import BatchSignals, Learner
from adaptspec.decision import Expected, Reason, StopTable, Union
from adaptspec.drafters import Kind, kind_of
from adaptspec.rounds import RoundRecord


@dataclass(frozen=True)
class GoodputSettings:
    """`tiers`: depths allowed in addition to 0. `stops`: a stop rule cuts drafts, so depths may be upper limits."""

    tiers: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7)
    drafters: tuple[str, ...] = ("draft-model",)
    acceptance: AcceptanceSettings = field(default_factory=AcceptanceSettings)
    stops: bool = True
    max_width: int = 1  # children of a node at most; 1: drafts are chains


class PriorSpec(Part):
    """What is believed before anything was seen."""

    acceptance: float = Field(
        default=AcceptanceSettings.prior, gt=0.0, lt=1.0, description="Of a drafted token, given those before it."
    )
    weight: float = Field(default=AcceptanceSettings.prior_weight, gt=0.0, description="In observations.")


class GoodputSpec(AlgorithmSpec):
    """`choose:` of joint goodput."""

    takes_tiers: ClassVar[bool] = True
    has_value: ClassVar[bool] = True
    takes_drafters: ClassVar[bool] = True
    default_stop: ClassVar[str] = "marginal-goodput"

    algorithm: Literal["goodput"]
    prior: PriorSpec = Field(default=PriorSpec(), description="What is believed at first.")

    def build(self, parts: Parts) -> Goodput:
        acceptance = AcceptanceSettings(self.prior.acceptance, self.prior.weight)
        settings = GoodputSettings(
            parts.tiers, parts.drafters, acceptance, stops=parts.stops, max_width=parts.max_width
        )
        return Goodput(parts.cost, parts.max_rows, parts.tasks, settings)


class Goodput(Algorithm):
    """argmax over depths and drafters of (B + tokens expected to be kept) / T(draft passes, their rows, verify tokens).

    Acceptance is estimated per request and position, costs by the cost model; `best_plan` solves for all rows at one
    price. Lookups (model-free drafters) are candidates like any other: what they found is known before the round.
    What the estimates reject is tried within the budgets of an `Explorer`: a model in rows that do not use it, and
    neighbouring depths where the executor runs whole drafts.

    Source: AdaptSpec design; the objective is vLLM's and SmartSpec's goodput (Liu et al. 2024, "Optimizing Speculative
    Decoding for Serving Large Language Models Using Goodput").
    """

    def __init__(self, cost: CostModel, rows: int, tasks: int, settings: GoodputSettings = GoodputSettings()) -> None:
        """`rows`: the engine's rows. `tasks` counts the known tasks and task 0, unknown."""
        self._cost = cost
        self._settings = settings
        self._tiers = sorted(set(settings.tiers) - {0})
        self.max_depth = depth = self._tiers[-1] if self._tiers else 0
        self._allowed: BoolArray = np.isin(np.arange(depth + 1), [0, *self._tiers])
        names = dict(enumerate(settings.drafters))
        self._models = {
            i: ModelAcceptance(rows, tasks, depth, settings.acceptance, branches=settings.max_width > 1)
            for i, name in names.items()
            if kind_of(name) is not Kind.MODEL_FREE
        }
        self._lookups = {
            i: LookupAcceptance(rows, tasks, depth) for i, name in names.items() if kind_of(name) is Kind.MODEL_FREE
        }
        self._whole = any(cost.runs_whole_drafts(settings.drafters[i]) for i in self._models)
        self._buffer = RecordBuffer(depth)
        self._explorer = Explorer()
        self._depth_step = 1
        # The last terms and, without lookups, what was planned by them, until something is learned or rows change.
        self._terms_key: bytes = b""
        self._terms: RoundTerms | None = None
        self._planned: tuple[RoundTerms, Plan, Choice] | None = None

    @property
    def search_depth(self) -> int | None:
        """See `Policy.search_depth`."""
        return self.max_depth if self._lookups and self.max_depth else None

    def start(self, row: int) -> None:
        self._buffer.start(row)
        self._forget_terms()
        for model in self._models.values():
            model.start(row)
        for lookup in self._lookups.values():
            lookup.start(row)

    def choose(self, signals: BatchSignals) -> Choice:
        if not self.max_depth:
            return Choice(np.zeros_like(signals.rows), np.full_like(signals.rows, int(Reason.OFF)))
        terms = self._terms_of(signals)
        lookups = tuple(self._lookup_terms(signals))
        if not lookups and self._planned is not None:
            terms, plan, choice = self._planned
        else:
            terms = replace(terms, lookups=lookups, weight=self._weights(signals))
            plan = best_plan(terms)
            if self._settings.max_width > 1:
                plan = with_lookups(terms, plan)
            choice = self._choice_of(plan, terms, signals)
            if not lookups:
                self._planned = terms, plan, choice
        waiting = self._explorer.decided_after
        if waiting is not None:
            choice = replace(choice, memo=waiting)
        elif self._models:
            choice = self._explored(plan, choice, terms, signals)
        return choice.within(signals.limits)

    def value(self, signals: BatchSignals) -> ExpectedValue | None:
        """What it expects of a round of these rows, for an algorithm that knows no costs; None without a model."""
        terms = self._terms_of(signals)
        plan = best_plan(terms)
        return self._value_of(plan, terms)

    def learn(self, record: RoundRecord, memo: object = None) -> None:
        if not self.max_depth:
            return
        self._buffer.add(record)
        for drafter_id, known in self._lookups.items():
            known.observe(drafter_id, record)
        self._explorer.learn(record, memo)
        if self._buffer.due:
            self._settle()

    def state(self) -> dict[str, FloatArray]:
        """See `Learner.state`. Names of all but the first drafter of a kind end with its number."""
        self._settle()
        kinds: tuple[Iterable[Learner], ...] = (self._models.values(), self._lookups.values())
        return {
            f"{name}-{index + 1}" if index else name: values
            for kind in kinds
            for index, drafter in enumerate(kind)
            for name, values in drafter.state().items()
        }

    def _settle(self) -> None:
        rounds = self._buffer.taken()
        if rounds is not None:
            for drafter_id, model in self._models.items():
                model.observe(drafter_id, rounds)
        for known in self._lookups.values():
            known.settle()
        self._forget_terms()

    def _forget_terms(self) -> None:
        self._terms_key, self._terms, self._planned = b"", None, None
        self._explorer.forget_prices()

    # --- terms --------------------------------------------------------------------------------------------------

    def _terms_of(self, signals: BatchSignals) -> RoundTerms:
        """What these rows earn and cost without lookups, as of what was last learned."""
        limits = np.minimum(signals.limits, self.max_depth)
        key = signals.rows.tobytes() + limits.tobytes() + signals.round_size.to_bytes(8, "little")
        if self._terms is None or key != self._terms_key:
            fits = self._allowed & (np.arange(self.max_depth + 1) <= signals.limits[:, None])
            models = tuple(
                ModelTerms.of(drafter_id, self._settings.drafters[drafter_id], known, self._cost, signals)
                for drafter_id, known in self._models.items()
            )
            self._terms, self._terms_key = RoundTerms.of(self._cost, signals, fits, models), key
            self._planned = None
        return self._terms

    def _lookup_terms(self, signals: BatchSignals) -> Iterator[LookupTerms]:
        depths = np.arange(self.max_depth + 1)
        for drafter_id, known in self._lookups.items():
            found = signals.found[drafter_id]
            if found.any():
                seconds = self._cost.draft_prices(self._settings.drafters[drafter_id], signals.round_size).row
                fits = self._allowed & (depths <= found[:, None])
                yield LookupTerms(drafter_id, known.expected_tokens(drafter_id, signals), fits, seconds)

    def _weights(self, signals: BatchSignals) -> FloatArray | None:  # noqa: ARG002 - see `Slo`
        """What a token of each row counts [B]; None: all the same."""
        return None

    # --- choices ------------------------------------------------------------------------------------------------

    def _choice_of(self, plan: Plan, terms: RoundTerms, signals: BatchSignals) -> Choice:
        # Where a stop rule can end drafts and has confidences to compare, it decides the depth: rows that the plan has
        # drafting get their limit as depth. The planned depth still sets `expected` and the goodput.
        stoppable = self._settings.stops and not self._whole
        informed = [i for i, model in self._models.items() if stoppable and model.calibration.informed]
        depths = plan.depths
        if informed:
            by_rule = (depths > 0) & np.isin(plan.drafter, informed)
            depths = np.where(by_rule, np.minimum(self.max_depth, signals.limits), depths)
        union = None
        if plan.lookups is not None and plan.lookup_drafter is not None:
            union = Union(plan.lookup_drafter, plan.lookups)
        other = terms.size / terms.plain if depths.any() else drafting_goodput(terms)
        return Choice(
            depths,
            np.where(depths > 0, int(Reason.POLICY), int(Reason.OFF)),
            self._value_of(plan, terms),
            plan.drafter,
            expected=Expected((terms.size + float(plan.kept.sum())) / plan.seconds, plan.kept, other),
            union=union,
        )

    @staticmethod
    def _value_of(plan: Plan, terms: RoundTerms) -> ExpectedValue | None:
        if not terms.models:
            return None
        drafting = {
            model.drafter_id: int(np.count_nonzero((plan.depths > 0) & (plan.drafter == model.drafter_id)))
            for model in terms.models
        }
        return ExpectedValue(plan.goodput, terms.verify, terms.models, drafting, terms.weight)

    # --- exploration --------------------------------------------------------------------------------------------

    def _explored(self, plan: Plan, choice: Choice, terms: RoundTerms, signals: BatchSignals) -> Choice:
        """The choice, or a trial instead of it."""
        for model in terms.models:
            found = self._draft_trial(model, plan, choice, terms, signals)
            if found is not None:
                return found
        if not self._whole or not choice.depths.any() or choice.union is not None or terms.lookups:
            return choice
        return self._depth_trial(plan, choice, terms, signals)

    def _draft_trial(
        self, model: ModelTerms, plan: Plan, choice: Choice, terms: RoundTerms, signals: BatchSignals
    ) -> Choice | None:
        """A model in rows that do not draft with it, as shallow as allowed: first in those that lose least."""
        drafter_id, depth, prices = model.drafter_id, self._tiers[0], model.prices
        kind = f"draft {drafter_id}"
        if self._explorer.saving(kind):
            return None
        idle = np.flatnonzero(((plan.depths == 0) | (plan.drafter != drafter_id)) & (signals.limits >= depth))
        if not len(idle):
            return None
        fixed = 0.0
        if drafter_id not in plan.deepest:
            fixed = depth * prices.step + prices.start + (0.0 if plan.depths.any() else terms.overhead)
        token_seconds = _token_seconds(plan, terms)
        each = np.full(len(idle), depth * prices.step_row + float(terms.verify[depth]))
        each += (plan.kept[idle] - model.gains[idle, depth]) * token_seconds[idle]
        gap = signals.cache_gap[drafter_id, idle]
        answers = np.minimum(gap, signals.position[idle])
        each += prices.catch_up_token * (gap - answers)
        reading = prices.catch_up_token * answers
        chosen = self._explorer.affordable(kind, plan.seconds, fixed, each, reading)
        if not len(chosen):
            return None
        at = idle[chosen]
        seconds = fixed + len(at) * (depth * prices.step_row + float(terms.verify[depth]))
        seconds += prices.catch_up_token * float(gap[chosen].sum())
        trial = Trial(
            kind=kind,
            rows=signals.rows[at],
            shared=_is_shared(signals),
            seconds=plan.seconds,
            kept=float(plan.kept[at] @ token_seconds[at]),
            predicted=plan.seconds + seconds,
            reading=float(reading[chosen].sum()),
            token_seconds=token_seconds[at],
        )
        self._explorer.open(trial)
        return replace(_tried(choice, at, np.full(len(at), depth), drafter_id), memo=trial)

    def _depth_trial(self, plan: Plan, choice: Choice, terms: RoundTerms, signals: BatchSignals) -> Choice:
        """All drafting rows one tier deeper or, every other time, one shallower.

        Executors that run whole drafts time whole rounds only: without such trials only the times of the planned depths
        would be learned.
        """
        tiers = np.array([0, *self._tiers])
        drafting = plan.depths > 0
        index = np.searchsorted(tiers, plan.depths) + self._depth_step * drafting
        depths = np.minimum(tiers[np.clip(index, drafting, len(tiers) - 1)], signals.limits)
        kept, tokens, seconds = plan.kept.copy(), plan.tokens.copy(), plan.seconds
        for model in terms.models:
            at = np.flatnonzero((plan.drafter == model.drafter_id) & drafting)
            if len(at):
                kept[at], tokens[at] = model.gains[at, depths[at]], model.nodes[depths[at]]
                seconds += float(model.prices.step * (depths[at].max() - plan.depths[at].max()))
        seconds += float(terms.verify_seconds(tokens.sum()) - terms.verify_seconds(plan.tokens.sum()))
        moved = replace(plan, depths=depths, kept=kept, tokens=tokens, seconds=seconds)
        found = self._moved(plan, moved, choice, terms, signals)
        if found is not choice or np.array_equal(depths, plan.depths):
            self._depth_step = -self._depth_step
        return found

    def _moved(self, plan: Plan, moved: Plan, choice: Choice, terms: RoundTerms, signals: BatchSignals) -> Choice:
        """A trial of the plan `moved` in place of `plan`, if it can be afforded."""
        at = np.flatnonzero((moved.depths != plan.depths) | ((moved.depths > 0) & (moved.drafter != plan.drafter)))
        if not len(at):
            return choice
        token_seconds = _token_seconds(plan, terms)
        kept = float(plan.kept @ token_seconds)
        loss = moved.seconds - plan.seconds - (float(moved.kept @ token_seconds) - kept)
        if not len(self._explorer.affordable("depth", plan.seconds, loss, np.zeros(1), np.zeros(1))):
            return choice
        trial = Trial("depth", signals.rows, _is_shared(signals), plan.seconds, kept, moved.seconds, 0.0, token_seconds)
        self._explorer.open(trial)
        # No stop rule: it would cut what is to be measured.
        depths = np.minimum(moved.depths, signals.limits)
        reasons = np.where(np.isin(np.arange(len(depths)), at), int(Reason.EXPLORE), choice.reasons)
        return replace(
            choice,
            depths=depths,
            reasons=reasons,
            drafter=moved.drafter,
            stop=StopTable(),
            expected=None,
            once=True,
            memo=trial,
        )


def _token_seconds(plan: Plan, terms: RoundTerms) -> FloatArray:
    """What a token of each row [B] is worth in seconds: its weight / the plan's goodput."""
    weight = np.ones(len(plan.depths)) if terms.weight is None else terms.weight
    return np.asarray(weight / plan.goodput)


def _is_shared(signals: BatchSignals) -> bool:
    """Whether prompts, or rows of other policies, take a part of the round's time."""
    return signals.prefill_tokens > 0 or signals.other_rows > 0


def _tried(choice: Choice, at: IntArray, depths: IntArray, drafter: IntArray | int) -> Choice:
    """A choice with other depths in the rows at these positions."""
    new_depths, reasons, drafters = choice.depths.copy(), choice.reasons.copy(), choice.drafter.copy()
    new_depths[at], reasons[at], drafters[at] = depths, int(Reason.EXPLORE), drafter
    return replace(choice, depths=new_depths, reasons=reasons, drafter=drafters, expected=None, once=True)

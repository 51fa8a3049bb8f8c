"""The plan of a round: which drafter drafts how deep for each row, for the most tokens per second."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from adaptspec.arrays import BoolArray, FloatArray, IntArray
from adaptspec.control.algorithms.round_terms import ModelTerms, RoundTerms

_ITERATIONS = 5  # of a price; it settles after two or three as a rule
_SETTLED = 0.002  # relative change of a price that has settled


@dataclass(frozen=True, eq=False)
class Plan:
    """Depth and drafter of each row [B], and what they are expected to come to.

    `goodput`: tokens per second of the whole round, weighted as its rows are. `kept`, `tokens` [B]: tokens that are
    expected to be kept and submitted, beyond one per row. `seconds` of the whole round. `deepest`: the deepest depth
    of each model that runs. `lookups` [B]: nodes of lookup drafter `lookup_drafter` [B], added to a model's draft.
    """

    goodput: float
    depths: IntArray
    drafter: IntArray
    kept: FloatArray
    tokens: FloatArray
    seconds: float
    deepest: Mapping[int, int] = field(default_factory=dict)
    lookups: IntArray | None = None
    lookup_drafter: IntArray | None = None


def best_plan(terms: RoundTerms) -> Plan:
    """The depths and drafters of the most goodput: (rows + tokens kept) / seconds, rows weighted as the terms say.

    One row: all options are compared. More rows: Dinkelbach's iteration for every subset of the models, since the
    passes of a model are shared by its rows: guess the price of a second in tokens, which is the round's goodput, let
    every row take the option that earns most beyond it, set the price to the goodput that results. It
    starts from few and from many tokens of the other rows, because a pass may cost less per token the more there are.

    Source: Dinkelbach 1967, "On Nonlinear Fractional Programming".
    """
    rows = len(terms.fits)
    weight = np.ones(rows) if terms.weight is None else terms.weight
    base = terms.size - rows + float(weight.sum())
    zeros = np.zeros(rows, dtype=np.int64)
    plain = Plan(base / terms.plain, zeros, zeros, np.zeros(rows), np.zeros(rows), terms.plain)
    return _best_of_one(terms, plain) if rows == 1 else _best_of_many(terms, plain, base, weight)


def _best_of_one(terms: RoundTerms, plain: Plan) -> Plan:
    best = plain
    for option in _options(terms, terms.models):
        drafting = np.arange(len(option.tokens)) > 0
        seconds = terms.plain + drafting * (terms.overhead + option.fixed) + option.row[0]
        seconds = seconds + option.steps + terms.verify_seconds(option.tokens)
        gains = np.where(option.fits[0], option.gains[0], -np.inf)
        goodput = (terms.size + gains) / seconds
        depth = int(goodput.argmax())
        if goodput[depth] > best.goodput:
            best = Plan(
                float(goodput[depth]),
                np.array([depth]),
                np.array([option.drafter_id]),
                gains[depth : depth + 1],
                option.tokens[depth : depth + 1],
                float(seconds[depth]),
                {option.drafter_id: depth} if option.is_model else {},
            )
    return best


def _best_of_many(terms: RoundTerms, plain: Plan, base: float, weight: FloatArray) -> Plan:
    best = plain
    rows = len(terms.fits)
    for models in _subsets(terms.models):
        options = list(_options(terms, models))
        if not options:
            continue
        for first in (0.0, 2.0 * (rows - 1)):
            price, others = best.goodput, first
            for _ in range(_ITERATIONS):
                found = _at_price(terms, options, price, others, base=base, weight=weight)
                if found.goodput > best.goodput:
                    best = found
                now = float(found.tokens.sum()) * (1.0 - 1.0 / rows)
                if abs(found.goodput - price) < _SETTLED * price and abs(now - others) < 1.0:
                    break
                price, others = max(found.goodput, plain.goodput), now
    return best


def _at_price(
    terms: RoundTerms, options: Sequence[_Option], price: float, others: float, *, base: float, weight: FloatArray
) -> Plan:
    """Every row takes the option that earns most beyond a price; a model runs if that pays for its passes."""
    rows = len(terms.fits)
    at, curve = np.arange(rows), terms.row_curve(others)
    counts = np.arange(len(curve))
    worth, kept, tokens, spent = np.zeros((4, rows))
    depths, drafter = np.zeros((2, rows), dtype=np.int64)
    fixed: dict[int, float] = {}
    deepest: dict[int, int] = {}
    for option in options:
        costs = np.interp(option.tokens, counts, curve) + option.row
        net = np.where(option.fits, weight[:, None] * option.gains - price * costs, -np.inf)
        most = net.shape[1] - 1
        if option.is_model:
            upto = np.maximum.accumulate(net, axis=1)
            drafting = np.arange(net.shape[1]) > 0
            shared = price * (option.steps + drafting * (option.fixed + (0.0 if deepest else terms.overhead)))
            most = int((np.maximum(upto, worth[:, None]).sum(axis=0) - shared).argmax())
            if not most:
                continue
            deepest[option.drafter_id] = most
            fixed[option.drafter_id] = option.fixed + float(option.steps[most])
        depth = net[:, : most + 1].argmax(axis=1)
        takes = net[at, depth] > worth
        worth = np.where(takes, net[at, depth], worth)
        depths, drafter = np.where(takes, depth, depths), np.where(takes, option.drafter_id, drafter)
        kept, tokens = np.where(takes, option.gains[at, depth], kept), np.where(takes, option.tokens[depth], tokens)
        spent = np.where(takes, option.row[at, depth], spent)
    # A model whose rows have all taken another option does not run.
    running = {i: most for i, most in deepest.items() if bool(np.count_nonzero((drafter == i) & (depths > 0)))}
    seconds = terms.plain + terms.overhead * bool(depths.any()) + sum(fixed[i] for i in running)
    seconds += float(spent.sum()) + float(terms.verify_seconds(tokens.sum()))
    goodput = (base + float(weight @ kept)) / seconds
    return Plan(goodput, depths, drafter, kept, tokens, seconds, running)


@dataclass(frozen=True, eq=False)
class _Option:
    """A drafter by depth 0 ... D: tokens kept [B, D + 1], tokens submitted [D + 1], seconds of each row [B, D + 1], of
    passes [D + 1], and of starting the model in a round.
    """

    drafter_id: int
    is_model: bool
    gains: FloatArray
    fits: BoolArray
    tokens: FloatArray
    row: FloatArray
    steps: FloatArray
    fixed: float


def _options(terms: RoundTerms, models: Sequence[ModelTerms]) -> Iterator[_Option]:
    counts = np.arange(terms.fits.shape[1], dtype=np.float64)
    for lookup in terms.lookups:
        row = np.broadcast_to((counts > 0) * lookup.seconds, lookup.gains.shape)
        yield _Option(lookup.drafter_id, False, lookup.gains, lookup.fits, counts, row, 0.0 * counts, 0.0)
    for model in models:
        row = model.prices.step_row * counts + (counts > 0) * model.catch_up[:, None]
        steps, start = model.prices.step * counts, model.prices.start
        yield _Option(model.drafter_id, True, model.gains, terms.fits, model.nodes, row, steps, start)


def _subsets(models: Sequence[ModelTerms]) -> Iterator[tuple[ModelTerms, ...]]:
    for count in range(len(models) + 1):
        yield from itertools.combinations(models, count)


def with_lookups(terms: RoundTerms, plan: Plan) -> Plan:
    """The plan with nodes of lookups added to the drafts of models, where that earns more at the plan's price.

    The two drafts are assumed to overlap as much as possible: the likelier of two nodes of one depth is kept whenever
    the other is. A lookup thus adds only its advantage, and equal nodes are submitted once.
    """
    models = {model.drafter_id: model for model in terms.models}
    drafting = (plan.depths > 0) & np.isin(plan.drafter, list(models))
    if not terms.lookups or not drafting.any():
        return plan
    rows, at = len(terms.fits), np.arange(len(terms.fits))
    weight = np.ones(rows) if terms.weight is None else terms.weight
    counts = np.arange(terms.fits.shape[1])
    model_gains: FloatArray = np.zeros(terms.fits.shape)
    for drafter_id, model in models.items():
        upto = np.minimum(counts, plan.depths[:, None])
        model_gains += (
            np.take_along_axis(model.gains, upto, axis=1) * (drafting & (plan.drafter == drafter_id))[:, None]
        )
    others = float(plan.tokens.sum()) * (1.0 - 1.0 / rows)
    curve = terms.row_curve(others)
    counts_of_row = np.arange(len(curve))
    worth, more_kept, more_tokens, spent = np.zeros((4, rows))
    depths, drafter = np.zeros((2, rows), dtype=np.int64)
    verified = np.interp(plan.tokens, counts_of_row, curve)
    for lookup in terms.lookups:
        of_model, of_lookup = np.diff(model_gains, axis=1), np.diff(lookup.gains, axis=1)
        kept, tokens = np.zeros((2, *model_gains.shape))
        kept[:, 1:] = np.maximum(of_lookup - of_model, 0.0).cumsum(axis=1)
        tokens[:, 1:] = (1.0 - np.minimum(of_lookup, of_model)).cumsum(axis=1)
        seconds = np.interp(plan.tokens[:, None] + tokens, counts_of_row, curve) - verified[:, None]
        seconds += (counts > 0) * lookup.seconds
        net = np.where(lookup.fits & drafting[:, None], weight[:, None] * kept - plan.goodput * seconds, -np.inf)
        depth = net.argmax(axis=1)
        takes = net[at, depth] > worth
        worth = np.where(takes, net[at, depth], worth)
        depths, drafter = np.where(takes, depth, depths), np.where(takes, lookup.drafter_id, drafter)
        more_kept = np.where(takes, kept[at, depth], more_kept)
        more_tokens = np.where(takes, tokens[at, depth], more_tokens)
        spent = np.where(takes, seconds[at, depth], spent)
    if not depths.any():
        return plan
    kept, seconds = plan.kept + more_kept, plan.seconds + float(spent.sum())
    goodput = plan.goodput * plan.seconds + float(weight @ more_kept)
    return replace(
        plan,
        goodput=goodput / seconds,
        kept=kept,
        tokens=plan.tokens + more_tokens,
        seconds=seconds,
        lookups=depths,
        lookup_drafter=drafter,
    )


def drafting_goodput(terms: RoundTerms) -> float:
    """Goodput of the best drafts of one depth and model for all rows that they fit, pay or not; NaN where none fits."""
    best = math.nan
    rows = terms.fits.sum(axis=0)
    for option in _options(replace(terms, lookups=()), terms.models):
        kept = np.where(option.fits, option.gains, 0.0).sum(axis=0)
        spent = terms.overhead + option.fixed + option.steps + (option.fits * option.row).sum(axis=0)
        spent = spent + terms.verify_seconds(rows * option.tokens)
        goodput = ((terms.size + kept) / (terms.plain + spent))[1:][rows[1:] > 0]
        best = float(np.nanmax([best, *goodput])) if len(goodput) else best
    return best

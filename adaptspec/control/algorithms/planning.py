"""The joint choice at one price: which rows draft how deep with which drafter for the most tokens per second."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from adaptspec.control.algorithms.algorithm import Choice, ExpectedValue
from adaptspec.control.algorithms.round_terms import ModelTerms, RoundTerms
from adaptspec.types import BoolArray, FloatArray, IntArray

# Steps of the two iterations, which settle sooner as a rule: of the price, and of how many tokens others verify.
_ITERATIONS, _ROUNDS = 4, 3
# A price that changes by less has settled.
_CLOSE = 0.02


@dataclass(frozen=True)
class Solution:
    """What a round comes to, how deep each model that is entered goes, and the seconds it shares among its rows."""

    goodput: float
    deepest: dict[int, int]
    line: FloatArray
    share: dict[int, float]
    others: float = 0.0  # tokens that the other rows of each verify


@dataclass
class Plan:
    """Depths at one price. It serves some rounds; rows that join are judged at the same price."""

    best: Solution
    terms: RoundTerms
    left: int  # rounds
    price: float  # the goodput of the last round with n-gram proposals
    rows: bytes = b""  # that the rest is for
    value: ExpectedValue | None = None
    choice: Choice | None = None
    known: dict[tuple[int | bytes, ...], Choice] = field(default_factory=dict)  # for a single row
    drafts: float | None = None  # goodput of the best drafts, once a round without any has asked
    # What a row does of whom nothing is known but its task, its limit and what it has to read: one of each kind.
    newcomers: dict[bytes, list[FloatArray]] = field(default_factory=dict)


@dataclass(frozen=True)
class NgramProposal:
    """What an n-gram drafter has found for the rows of a round: known beforehand, since looking is free."""

    which: int
    gains: FloatArray  # [B, D + 1] tokens expected to be kept
    fits: BoolArray  # [B, D + 1] depths that were found, and 0
    seconds: float  # for a row to draft


@dataclass(frozen=True)
class Allocation:
    """Rows that take a proposal: how deep (0: none) and whose, and whether beside what they are to do themselves; what
    all rows keep, submit and take [3, B]; the price.
    """

    taken: IntArray
    whose: IntArray
    united: BoolArray
    expected: FloatArray
    price: float


def allocated(
    terms: RoundTerms, planned: FloatArray, gains: FloatArray | None, proposals: Sequence[NgramProposal], price: float
) -> Allocation:
    """Rows take what is proposed where that earns more than what they are to do, at the round's own price.

    `planned` [3, B] are tokens kept, tokens submitted and seconds beside verifying; `gains` [B, D + 1] what is kept
    of it up to each depth (None: drafts do not branch); `price` is that of the last round.
    """
    rows = len(planned[0])
    at, others = np.arange(rows), float(planned[1].sum()) * (1.0 - 1.0 / rows)
    options = [(one, *option) for one in proposals for option in _options(one, planned, gains)]
    for _ in range(_ROUNDS):
        line = line_at(terms, others)
        n = np.arange(len(line))
        worth = np.maximum(planned[0] - price * (planned[2] + np.interp(planned[1], n, line)), 0.0)
        taken, whose, expected = np.zeros(rows, np.int64), np.zeros(rows, np.int64), planned
        united: BoolArray = np.zeros(rows, dtype=np.bool_)
        for proposal, beside, kept, tokens, seconds in options:
            net = np.where(proposal.fits, kept - price * (np.interp(tokens, n, line) + seconds), -np.inf)
            own = net.argmax(axis=1)
            best = net[at, own]
            better = best > worth
            worth = np.where(better, best, worth)
            taken, whose = np.where(better, own, taken), np.where(better, proposal.which, whose)
            united = np.where(better, beside, united)
            expected = np.where(better, (kept[at, own], tokens[at, own], seconds[at, own]), expected)
        brought, submitted, spent = expected.sum(axis=1).tolist()
        spent += float(np.interp(submitted, np.arange(len(terms.verify)), terms.verify))
        now = (terms.size + brought) / (terms.plain + terms.beside * (submitted > 0) + spent)
        settled = abs(now - price) < _CLOSE * price
        price, others = now, submitted * (1.0 - 1.0 / rows)
        if settled:
            break
    return Allocation(taken, whose, united, expected, price)


def _options(
    proposal: NgramProposal, planned: FloatArray, gains: FloatArray | None
) -> Iterator[tuple[bool, FloatArray, FloatArray, FloatArray]]:
    """A proposal in place of what rows are to do, and beside it: tokens kept, tokens submitted and seconds, [B, D + 1].

    Where both draft, the likelier of two nodes of one depth is taken to be kept whenever the other is: no more than
    that is known before they have drafted, and the two are never worth less.
    """
    n = np.arange(proposal.gains.shape[1])
    seconds = np.broadcast_to((n > 0) * proposal.seconds, proposal.gains.shape)
    yield False, proposal.gains, np.broadcast_to(n, proposal.gains.shape), seconds
    if gains is not None:
        own, found = np.diff(gains, axis=1), np.diff(proposal.gains, axis=1)
        more, fresh = np.zeros((2, *proposal.gains.shape))
        more[:, 1:] = np.maximum(found - own, 0.0).cumsum(axis=1)
        fresh[:, 1:] = (1.0 - np.minimum(found, own)).cumsum(axis=1)
        yield True, planned[0][:, None] + more, planned[1][:, None] + fresh, planned[2][:, None] + seconds


def best_plan(terms: RoundTerms) -> Solution:
    """Dinkelbach's iteration from plain decoding's goodput: the best at that price sets the next."""
    off = terms.size / terms.plain
    best = Solution(off, {}, line_at(terms, 0.0), {})
    # Tokens of other rows to begin with: a pass may take less for each the more there are.
    rows = len(terms.fits)
    starts: tuple[float, ...] = (0.0,) if rows == 1 else (0.0, 2.0 * (rows - 1))
    for _ in range(_ITERATIONS):
        price = best.goodput
        tried = (_solved(terms, models, price, n) for models in _subsets(terms.models) for n in starts)
        found = max(tried, key=lambda one: one.goodput, default=best)
        if found.goodput <= 1.001 * price:
            break
        best, starts = found, (found.others,)
    return best


def drafting_goodput(terms: RoundTerms) -> float:
    """Goodput of the best drafts of one depth for all rows that they fit, pay or not; NaN where none does."""
    rounds = [math.nan]
    for model in terms.models:
        rows = terms.fits.sum(axis=0)
        kept = np.where(terms.fits, model.gains, 0.0).sum(axis=0)
        spent = terms.beside + model.start + model.per_step * model.steps + model.per_row * rows * model.sizes
        spent += (terms.fits * model.entry[:, None]).sum(axis=0)
        spent += np.interp(rows * model.nodes, np.arange(len(terms.verify)), terms.verify)
        whole = (terms.size + kept) / (terms.plain + spent)
        rounds += whole[1:][rows[1:] > 0].tolist()
    return float(np.nanmax(rounds)) if len(rounds) > 1 else math.nan


def _subsets(models: Sequence[ModelTerms]) -> Iterator[tuple[ModelTerms, ...]]:
    for count in range(1, len(models) + 1):
        yield from itertools.combinations(models, count)


def line_at(terms: RoundTerms, tokens: float) -> FloatArray:
    """Seconds that 0 ... N tokens of one row add to those of others."""
    last = len(terms.verify) - 1
    most = last // len(terms.fits)
    low = min(int(tokens), last - most)
    line: FloatArray = terms.verify[low : low + most + 1] - terms.verify[low]
    return line


def best_of(
    terms: RoundTerms, deepest: Mapping[int, int], goodput: float, line: FloatArray, share: Mapping[int, float]
) -> tuple[IntArray, IntArray, FloatArray]:
    """Depth and model of each row [B] at a price, and what it is expected to keep, submit and take [3, B]."""
    nets = {model.which: _net(terms, model, goodput, line) for model in terms.models if deepest.get(model.which, 0)}
    return _best_of(terms, nets, deepest, share)


def _best_of(
    terms: RoundTerms, nets: Mapping[int, FloatArray], deepest: Mapping[int, int], share: Mapping[int, float]
) -> tuple[IntArray, IntArray, FloatArray]:
    rows = len(terms.fits)
    at = np.arange(rows)
    depth, who = np.zeros((2, rows), dtype=np.int64)
    worth, expected = np.zeros(rows), np.zeros((3, rows))
    for model in terms.models:
        most = deepest.get(model.which, 0)
        if most:
            net = nets[model.which][:, : most + 1]
            own = net.argmax(axis=1)
            best = net[at, own]
            better = best > worth
            seconds = model.entry + model.per_row * model.sizes[own] + share.get(model.which, 0.0)
            depth, who = np.where(better, own, depth), np.where(better, model.which, who)
            worth = np.where(better, best, worth)
            expected = np.where(better, (model.gains[at, own], model.nodes[own], seconds), expected)
    return depth, who, expected


def _net(terms: RoundTerms, model: ModelTerms, goodput: float, line: FloatArray) -> FloatArray:
    """What drafts of each depth earn beyond their price [B, D + 1], steps left out."""
    tokens = np.interp(model.nodes, np.arange(len(line)), line)
    net = model.gains - goodput * (tokens + model.per_row * model.sizes)
    net[:, 1:] -= goodput * model.entry[:, None]
    return np.where(terms.fits, net, -np.inf)


def _solved(terms: RoundTerms, models: Sequence[ModelTerms], goodput: float, others: float) -> Solution:
    """Depths at a price when these models are entered, beginning with so many tokens of other rows to verify."""
    rows = len(terms.fits)
    n = np.arange(terms.fits.shape[1])
    for _ in range(_ROUNDS):
        line = line_at(terms, others)
        nets = {model.which: _net(terms, model, goodput, line) for model in models}
        deepest: dict[int, int] = {}
        known = np.zeros(rows)
        for model in models:
            upto = np.maximum.accumulate(nets[model.which], axis=1)
            fixed = goodput * (model.per_step * model.steps + (n > 0) * (model.start + terms.beside))
            most = int((np.maximum(upto, known[:, None]).sum(axis=0) - fixed).argmax())
            if most:
                deepest[model.which] = most
                known = np.maximum(upto[:, most], known)
        depth, who, (kept, tokens, seconds) = _best_of(terms, nets, deepest, {})
        number = float(tokens.sum())
        now = number * (1.0 - 1.0 / rows)
        if abs(now - others) < 1.0:
            break
        others = now
    steps = {m.which: m.start + m.per_step * float(m.steps[deepest[m.which]]) for m in models if m.which in deepest}
    share = {i: each / max(1, int(np.count_nonzero((who == i) & (depth > 0)))) for i, each in steps.items()}
    spent = float(seconds.sum()) + sum(steps.values()) + terms.beside * bool(steps)
    spent += float(np.interp(number, np.arange(len(terms.verify)), terms.verify))
    gained = float(kept.sum())
    whole = (terms.size + gained) / (terms.plain + spent)
    return Solution(whole, deepest, line, share, now)

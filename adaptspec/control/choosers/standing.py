"""What a joint plan leaves behind: depths of rows, and prices by which rows that join the batch are judged alone.

Knows markets and plans; it does not know when a plan is made, nor what was learned for it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

import numpy as np

from adaptspec.control.choosers.chooser import Choice, Outlook
from adaptspec.control.choosers.planning import Market, Plan
from adaptspec.control.reasons import OFF, POLICY
from adaptspec.types import Expected, FloatArray, IntArray, Reason

_OFF, _POLICY = int(Reason.OFF), int(Reason.POLICY)
# More than one row in so many: news of these cannot wait for the next plan.
MANY = 8


class Wishes:
    """What plans said last of each row of the engine: depth (-1: nothing), acceptance, factor, gains by depth.

    `asked`: the depth to ask for, which is the plan's cap where a stop rule ends drafts, and the `reasons` for it.
    Numbers of a row stand side by side: a row that joins a batch is set in one go.
    """

    def __init__(self, rows: int, depth: int) -> None:
        self.depths: IntArray = np.full(rows, -1, dtype=np.int64)
        self.asked: IntArray = np.zeros(rows, dtype=np.int64)
        self.reasons: IntArray = np.zeros(rows, dtype=np.int64)
        self._lines: FloatArray = np.zeros((rows, 2 * depth + 2))
        self.acceptance = self._lines[:, :depth]
        self.factors = self._lines[:, depth]
        self.gained = self._lines[:, 1 + depth :]

    def forget(self, row: int) -> None:
        """A new request is in `row`."""
        self.depths[row] = -1

    def note(self, rows: IntArray, depths: IntArray, cap: int | None, outlook: Outlook) -> None:
        """Of different rows: depths [N], the cap of those that draft, if there is one, and what a plan says of them."""
        self.depths[rows], self.acceptance[rows], self.gained[rows] = depths, outlook.acceptance, outlook.gained
        self.factors[rows] = 1.0 if outlook.factors is None else outlook.factors
        self.asked[rows], self.reasons[rows] = asked(depths, cap)

    def note_one(self, row: int, depth: int, cap: int | None, line: FloatArray) -> None:
        """Of a row: its depth and cap, and acceptance [D], factor, tokens gained [1 + D] in one array."""
        self.depths[row] = depth
        self.asked[row] = cap if depth and cap is not None else depth
        self.reasons[row] = _POLICY if depth else _OFF
        self._lines[row] = line


def asked(planned: IntArray, cap: int | None) -> tuple[IntArray, IntArray]:
    """Depths to ask for where these were planned, and why: those that draft may go to the cap, if there is one."""
    if len(planned) == 1:
        depth = planned.item()
        if not depth:
            return planned, OFF
        return (planned if cap is None else np.array([cap])), POLICY
    drafting = planned > 0
    return (planned if cap is None else cap * drafting), np.where(drafting, POLICY, OFF)


class SeatedOutlook(Outlook):
    """A plan's outlook for the rows that run now: what was wished for each is read where it stands, once asked for.

    Good until wishes change, which is when the next round is planned.
    """

    _wishes: Wishes
    _rows: IntArray

    def __init__(self, plan: Outlook, wishes: Wishes, rows: IntArray, planned: IntArray) -> None:
        # As `changed` does: a batch that changed has another in every round.
        self.__dict__.update(
            goodput=plan.goodput,
            per_step=plan.per_step,
            per_row=plan.per_row,
            verify=plan.verify,
            kept=plan.kept,
            drafted=plan.drafted,
            planned=planned,
            sizes=plan.sizes,
            _wishes=wishes,
            _rows=rows,
        )

    @functools.cached_property
    def acceptance(self) -> FloatArray:
        """See `Outlook`."""
        acceptance: FloatArray = self._wishes.acceptance[self._rows]
        return acceptance

    @functools.cached_property
    def factors(self) -> FloatArray:
        """See `Outlook`."""
        factors: FloatArray = self._wishes.factors[self._rows]
        return factors

    @functools.cached_property
    def gained(self) -> FloatArray:
        """See `Outlook`."""
        gained: FloatArray = self._wishes.gained[self._rows]
        return gained

    def kept_at(self, depths: IntArray) -> FloatArray:
        """See `Outlook`."""
        kept: FloatArray = self._wishes.gained[self._rows, depths]
        return kept

    def expected(self, depths: IntArray) -> Expected:
        """See `Outlook`. A plan's depths are none that it does not know."""
        return Expected(self.goodput, self.kept_at(depths))


@dataclass(frozen=True)
class BatchPlan:
    """What was found best for a batch of `size` rows."""

    size: int
    market: Market
    best: Plan
    outlook: Outlook
    cap: int | None  # depth of all rows that draft, where a stop rule ends drafts
    tryout: tuple[float, float]

    @property
    def plain(self) -> float:
        """Seconds of a round without drafts."""
        return self.market.plain

    def serves(self, size: int) -> bool:
        """Whether a batch of this size is much the same."""
        return MANY * abs(size - self.size) <= self.size


@dataclass(frozen=True)
class Newcomer:
    """A new row of a task: its `line` as wishes hold it, its best depth, and the tokens that it may catch up for that:

    they cost what drafting earns.
    """

    line: FloatArray
    depth: int
    most_lag: float

    def depth_after(self, lag: int) -> int:
        """The depth, if it must catch up so many tokens."""
        return self.depth if lag < self.most_lag else 0


class Newcomers:
    """New rows at the prices of a plan, by task.

    Given the goodput of the round, rows can be judged apart: one drafts while its next token gains more than goodput x
    its seconds (Dinkelbach). In plain Python: few tasks turn up while a plan serves.
    """

    def __init__(self, plan: BatchPlan, kept: FloatArray, drafted: FloatArray) -> None:
        """`kept` and `drafted` as `Continuation.rates` says."""
        market, self._goodput = plan.market, plan.best.goodput
        used, last = int(plan.best.depths.sum()), len(market.verify) - 1
        ahead = max(1, min(4, last - used))
        per_token = market.per_row + float(market.verify[min(used + ahead, last)] - market.verify[used]) / ahead
        fixed = 0.0
        if not used:  # the only one to draft pays for the steps
            per_token += market.per_step
            fixed = max(0.0, market.overhead - market.plain_overhead)
        self._kept: list[float] = kept.tolist()
        self._spent = [self._goodput * (fixed + per_token * tokens) for tokens in accumulate(drafted.tolist())]
        self._tiers: list[int] = market.tiers.tolist()
        self._known: dict[int, Newcomer] = {}

    def of(self, task: int, hopeful: Callable[[int], list[float]], entry: Callable[[int], float]) -> Newcomer:
        """Of a row of this task; `hopeful` tells the conditional acceptance of a task's rows by position, `entry` the

        seconds per round for each token to catch up.
        """
        known = self._known.get(task)
        if known is None:
            acceptance = hopeful(task)
            gained = [0.0, *accumulate(map(mul, accumulate(acceptance, mul), self._kept))]
            worth, depth = max((gained[tier] - self._spent[tier - 1], -tier) for tier in self._tiers)
            most_lag = worth / max(self._goodput * entry(task), 1e-12)
            known = self._known[task] = Newcomer(np.array([*acceptance, 1.0, *gained]), -depth, most_lag)
        return known


@dataclass(frozen=True)
class Seats:
    """The plan laid out for the rows of a batch, and whether any is off."""

    batch: bytes
    choice: Choice
    some_off: bool

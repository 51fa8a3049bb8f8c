"""Bets between a plan and an offer: what each promised, and what it came to, whoever ran.

Knows rounds and their prices; what follows for whom is drawn next it does not know.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from adaptspec.control.choosers.lookup import Prices, Weighed
from adaptspec.types import FloatArray, IntArray, RoundRecord

# Columns of gains: of the plan, of the lookup in its place, and rounds.
PLAN, OFFER, ROUNDS = 0, 1, 2
# A bet holds on to its whole round.
_MOST = 64


@dataclass(frozen=True, eq=False)
class Bet(Weighed):
    """What plan and offer of one row promise: whether the plan drafts `beside` the offer, how many tokens of it are

    `kept` and what that nets, `worth`. `entry`: what drafting at all costs where the plan does not.
    """

    beside: bool
    kept: float
    worth: float
    prices: Prices
    entry: float


@dataclass(frozen=True)
class Bets:
    """The same for B rows: the `depth` of each one's offer, 0 where it has none, and of which of the `kinds` of rows it

    is, by which `gains` [K, D] tells what is expected to be kept of it.
    """

    depth: IntArray
    kinds: IntArray
    gains: FloatArray
    kept: FloatArray
    prices: Prices
    entry: float


@dataclass(frozen=True)
class Gained:
    """What N requests gained: the row of each (-1: it has ended), its group, and `gains` [N, 3] in tokens."""

    rows: IntArray
    groups: IntArray
    gains: FloatArray


class BetBook:
    """Bets of some rounds, scored together: what a request gained is its own, though another has its row by then."""

    def __init__(self, rows: int, lookup: int) -> None:
        """`lookup`: its place among the policy's drafters."""
        self._lookup = lookup
        self._slot: IntArray = np.arange(rows)  # of the request in each row
        self._groups = [0] * rows  # of each slot: beyond the rows are requests that came while bets were open
        self._open: list[tuple[Bet | Bets, RoundRecord, IntArray]] = []

    @property
    def full(self) -> bool:
        """Whether it is time to settle."""
        return len(self._open) >= _MOST

    @property
    def rows(self) -> int:
        """How many had an open bet last."""
        return len(self._open[-1][2]) if self._open else 0

    def start(self, row: int, group: int) -> None:
        """A request of this group begins in `row`."""
        if self._open:
            self._slot[row] = len(self._groups)
            self._groups.append(group)
        else:
            self._groups[row] = group

    def note(self, bet: Bet | Bets, record: RoundRecord) -> None:
        """A round in which this was promised has ended."""
        self._open.append((bet, record, self._slot[record.rows]))

    def settle(self) -> Gained | None:
        """What all came to; None if nobody gained anything."""
        bets, self._open = self._open, []
        if not bets:
            return None
        gains: FloatArray = np.zeros((len(self._groups), 3))
        for bet, record, slots in bets:
            if isinstance(bet, Bet):
                _score_one(bet, record, self._lookup, gains[slots.item()])
                continue
            gained = _score_many(bet, record, self._lookup)
            if gained is not None:
                gains[slots] += gained
        rows: IntArray = np.full(len(gains), -1, dtype=np.int64)
        rows[self._slot] = np.arange(len(self._slot))
        groups = np.array(self._groups)
        self._groups = groups[self._slot].tolist()
        self._slot = np.arange(len(self._slot))
        used = np.flatnonzero(gains[:, ROUNDS])
        return Gained(rows[used], groups[used], gains[used]) if len(used) else None


def _score_one(bet: Bet, record: RoundRecord, which: int, own: FloatArray) -> None:
    """Add what plan and offer came to in a round of one row to its own gains [3]."""
    emitted = record.emitted.item()
    kept, plan = min(record.accepted.item(), emitted - 1), bet.worth  # what earned something, see `RowRounds`
    if record.drafter.item() == which and record.depths.item():
        reach, right = record.drafted.item(), kept
    elif record.shadow is not None and record.shadow_drafted is not None:
        reach, right = record.shadow_drafted[which].item(), record.shadow[which].item()
        if record.depths.item():
            plan += kept - bet.kept
    else:
        return
    depth, gains = bet.depth, bet.expected
    if right == emitted and depth > emitted:
        survives = gains[emitted - 1] - (gains[emitted - 2] if emitted > 1 else 0.0)
        more = min((gains[depth - 1] - gains[emitted - 1]) / max(survives, 1e-6), float(depth - emitted))
        came, price = right + more, bet.prices.more[depth] - bet.prices.more[0]
    else:
        came, price = float(min(right, depth)), bet.prices.more[min(reach, depth)] - bet.prices.more[0]
    scale = bet.prices.round.base / (bet.prices.goodput * bet.prices.round.plain)
    own[PLAN] += plan * scale
    own[OFFER] += (came - bet.prices.goodput * price - bet.entry) * scale
    own[ROUNDS] += 1.0


def _score_many(bets: Bets, record: RoundRecord, which: int) -> FloatArray | None:
    """What plans and offers came to [B, 3], in rows that had an offer; None where nobody knows."""
    prices = bets.prices
    if record.shadow is None or record.shadow_drafted is None:
        return None
    kept = np.minimum(record.accepted, record.emitted - 1)  # what earned something, see `RowRounds`
    took = (record.drafter == which) & (record.depths > 0)
    reach = np.where(took, record.drafted, record.shadow_drafted[which])
    right = np.where(took, kept, record.shadow[which])
    drafted = ~took & (record.depths > 0)
    expected = bets.gains[bets.kinds]
    # The plan's advantage over plain decoding is the rows', by what is expected of them.
    worth = prices.ahead * bets.kept / max(float(bets.kept.sum()), 1e-9)
    plan = worth + np.where(drafted, kept - bets.kept, 0.0)
    going = ~took & (right == record.emitted) & (bets.depth > record.emitted)
    every, depth = np.arange(len(right)), bets.depth - 1
    seen = np.minimum(record.emitted, expected.shape[1]) - 1
    there = expected[every, seen]
    before = np.where(seen > 0, expected[every, seen - 1], 0.0)
    more = (expected[every, depth] - there) / np.maximum(there - before, 1e-6)
    came = np.where(going, right + np.minimum(more, bets.depth - record.emitted), np.minimum(right, bets.depth))
    price = prices.round.curve[np.where(going, bets.depth, np.clip(reach, 0, bets.depth))]
    offer = came - prices.goodput * price - bets.entry
    scale = prices.round.base / (prices.goodput * prices.round.plain)
    told = (bets.depth > 0) & (right >= 0)
    each = np.stack((plan * scale, offer * scale, np.ones(len(plan))), axis=1)
    gained: FloatArray = each * told[:, None]
    return gained

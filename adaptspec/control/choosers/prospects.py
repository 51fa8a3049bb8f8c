"""What each drafter promises each row, and what it came to in rounds that are past, drafted or not.

Knows markets and records; it does not know who chooses among the drafters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from adaptspec.control.choosers.planning import Market, best_plan
from adaptspec.types import BoolArray, FloatArray, IntArray, RoundRecord


@dataclass(frozen=True)
class Gains:
    """What K drafters came to, in tokens beyond what a plain round yields less what their time is worth.

    `net` [K, M] for M row-rounds, `rows` [M] whose they were.
    """

    rows: IntArray
    net: FloatArray


class Prospects:
    """Per drafter and row: the best depth, what it is expected to earn at each depth, and what a token costs.

    Time is priced at the best drafter's goodput G (tokens per second of the batch): a draft of c tokens of which a are
    accepted nets a - c * G * seconds per drafted token - G * seconds of catching up, so a plain round nets 0, and the
    drafter with the highest net has the highest goodput (Dinkelbach's form of a ratio of sums).
    """

    def __init__(self, drafters: int, rows: int, depth: int) -> None:
        self._depth: IntArray = np.zeros((drafters, rows), dtype=np.int64)
        self._earned: FloatArray = np.zeros((drafters, rows, depth + 1))  # expected accepted tokens by depth
        self._spent: FloatArray = np.zeros((drafters, depth + 1))  # expected drafted tokens by depth
        self._entry: FloatArray = np.zeros((drafters, rows))
        self._price: FloatArray = np.zeros(drafters)
        self._which: IntArray = np.arange(drafters)[:, None]
        self.scale = 1.0  # tokens of a row in a round, as expected of the best drafter
        self.plain = 0.0  # seconds of a round without drafts
        self.first: FloatArray = np.zeros(drafters)  # seconds of one token of one row, if nobody else drafts

    def renew(self, rows: IntArray, markets: Sequence[Market]) -> None:
        """Plan every drafter for all `rows`, as if it drafted for them alone."""
        plans = [best_plan(market) for market in markets]
        goodput = max(plan.goodput for plan in plans)
        best = 1.0
        for which, (market, plan) in enumerate(zip(markets, plans, strict=True)):
            self._depth[which, rows] = plan.depths
            self._earned[which, rows, 1:] = np.cumsum(market.gains, axis=1)
            self._entry[which, rows] = goodput * market.entry
            earned = float(self._earned[which, rows, plan.depths].sum())
            self._spent[which, 1:] = np.cumsum(market.sizes[0])
            drafted = float(self._spent[which, plan.depths].sum())
            self.first[which] = market.per_step + market.per_row + float(market.verify[1] - market.verify[0])
            seconds = (market.base_tokens + earned) / plan.goodput - market.plain - float(market.entry.sum())
            self._price[which] = goodput * (max(seconds, 0.0) / drafted if drafted else self.first[which])
            best = max(best, 1.0 + earned / len(rows))
            self.plain = market.plain
        self.scale = best

    def useful(self, rows: IntArray) -> BoolArray:
        """Which drafters would draft at all, [N, K]."""
        useful: BoolArray = (self._depth[:, rows] > 0).T
        return useful

    def forget(self, row: int) -> None:
        """A new request: until plans are renewed, no drafter is known to be useless to it."""
        self._depth[:, row] = 1
        self._earned[:, row] = 0.0
        self._entry[:, row] = 0.0

    def expected(self, rows: IntArray) -> FloatArray:
        """Tokens that each drafter's best depth nets, [K, N]."""
        depth = self._depth[:, rows]
        cost = self._price[:, None] * self._spent[self._which, depth] + self._entry[:, rows]
        net: FloatArray = self._earned[self._which, rows, depth] - cost
        return net

    def gains(self, records: Sequence[RoundRecord]) -> Gains:
        """What every drafter came to in these rounds, whoever ran.

        One that ran: its own outcome. One that was scored: what its best depth would have got; where all emitted
        tokens were right and it would have drafted deeper, the rest is what is expected beyond them. One of which
        nothing is known: what is expected of it.
        """
        rows, depths, drafter, drafted, accepted, emitted = (
            np.concatenate([getattr(record, name) for record in records])
            for name in ("rows", "depths", "drafter", "drafted", "accepted", "emitted")
        )
        scored, reach = (self._shadows(records, name) for name in ("shadow", "shadow_drafted"))
        depth = self._depth[:, rows]
        going = (scored == emitted) & (depth > emitted)
        known, ran = scored >= 0, (drafter == self._which) & (depths > 0)
        earned = self._earned[self._which, rows, depth]
        spent = self._spent[self._which, depth]
        if going.any():
            # As the expectation goes on from the last position seen, so does this draft.
            seen = np.minimum(emitted, self._spent.shape[1] - 1)
            at, before = self._earned[self._which, rows, seen], self._earned[self._which, rows, seen - 1]
            done, last = self._spent[:, seen], self._spent[:, seen] - self._spent[:, seen - 1]
            more = np.where(going, (earned - at) / np.maximum(at - before, 1e-6), 0.0)
            longer = np.where(going, (spent - done) / np.maximum(last, 1e-6), 0.0)
            earned = np.where(known, scored + np.minimum(more, depth - seen), earned)
            spent = np.where(known, reach + np.minimum(longer, depth - seen), spent)
        earned = np.where(known & ~going, np.minimum(scored, depth), earned)
        spent = np.where(known & ~going, np.minimum(reach, depth), spent)
        earned, spent = np.where(ran, accepted, earned), np.where(ran, drafted, spent)
        return Gains(rows, earned - self._price[:, None] * spent - self._entry[:, rows])

    def _shadows(self, records: Sequence[RoundRecord], name: str) -> IntArray:
        unknown = np.full((len(self._which), 1), -1, dtype=np.int64)
        parts = []
        for record in records:
            scores = getattr(record, name)
            size = (len(self._which), len(record.rows))
            parts.append(np.broadcast_to(unknown, size) if scores is None else scores[: len(self._which)])
        return np.concatenate(parts, axis=1)

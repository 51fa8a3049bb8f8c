"""Rounds in hand: noted every round, learned in lots, since learning many costs hardly more than learning one.

Knows numbers of rounds; it does not know what is learned from them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from adaptspec.types import BoolArray, FloatArray, IntArray, RoundRecord

# A note holds on to its whole record: so many at most, however few rows they have.
_MOST_ROUNDS = 256


@dataclass(frozen=True)
class RowRounds:
    """N row-rounds: row (or the name it goes under), depth, tokens drafted and kept, all [N]; `confidence` [N, D].

    A depth of 0 where something was drafted: it says nothing of how far drafts go on.

    Kept tokens are those that earned something: of an accepted draft that ends the request, the tokens behind its
    end are lost, and the last one stands in for the token that the round would have yielded anyway. So positions
    beyond the end of a request count as rejected: where answers are short, deep drafts do not pay.
    """

    rows: IntArray
    depths: IntArray
    drafted: IntArray
    kept: IntArray
    confidence: FloatArray  # NaN where unknown; what stands where nothing was drafted is never read


class Renames:
    """Rows that others have come into since something was noted of them: that goes under another name."""

    def __init__(self) -> None:
        self._told: list[tuple[int, int, int]] = []  # row-rounds noted by then, the row, and its name for them

    def note(self, noted: int, row: int, name: int) -> None:
        """A new request is in `row`: the first `noted` row-rounds that are of it were another's."""
        self._told.append((noted, row, name))

    def apply(self, rows: IntArray) -> None:
        """Name these row-rounds [N], in the order in which they were noted, by whose they were; then forget."""
        for noted, row, name in self._told:
            mine = rows[:noted]
            mine[mine == row] = name
        self._told.clear()


class Notes:
    """Rounds of up to `room` row-rounds in all, or a little more: nothing is worked out before it is learned."""

    def __init__(self, depth: int, room: int = 1024) -> None:
        self._depth, self._room = depth, room
        self._count = 0
        self._rounds: list[tuple[RoundRecord, BoolArray | None]] = []
        self._renames = Renames()

    @property
    def full(self) -> bool:
        """Whether it is time to learn them."""
        return self._count >= self._room or len(self._rounds) >= _MOST_ROUNDS

    def rename(self, row: int, name: int) -> None:
        """A new request is in `row`: what is noted of it was another's, and goes under this name."""
        if self._rounds:
            self._renames.note(self._count, row, name)

    def add(self, record: RoundRecord, ran: BoolArray | None = None) -> None:
        """Note a round; rows that are not in `ran` [B] drafted nothing."""
        self._rounds.append((record, ran))
        self._count += len(record.rows)

    def take(self) -> RowRounds | None:
        """All of them, which are forgotten; None if there are none."""
        if not self._rounds:
            return None
        records = [record for record, _ in self._rounds]
        sizes = [len(record.rows) for record in records]
        rows, depths, drafted, accepted, emitted = (
            np.concatenate(part)
            for part in zip(*((r.rows, r.depths, r.drafted, r.accepted, r.emitted) for r in records), strict=True)
        )
        self._renames.apply(rows)
        if any(ran is not None for _, ran in self._rounds):
            who = [
                np.ones(size, dtype=np.bool_) if ran is None else ran
                for (_, ran), size in zip(self._rounds, sizes, strict=True)
            ]
            ran = np.concatenate(who)
            depths, drafted, accepted = depths * ran, drafted * ran, accepted * ran
        if any(record.caught_up for record in records):
            # A row that only caught up was not asked for a draft: its end says nothing of how long drafts go on. Nor do
            # those of others in its round: they were stopped by what a token costs while few draft.
            read = np.array([record.caught_up > 0 for record in records])
            read &= np.logical_or.reduceat((drafted == 0) & (depths > 0), np.cumsum([0, *sizes[:-1]]))
            depths[np.repeat(read, sizes)] = 0
        confidence: FloatArray = np.full((len(rows), self._depth), np.nan)
        start = 0
        for record, size in zip(records, sizes, strict=True):
            sure = record.confidence[:, : self._depth]
            confidence[start : start + size, : sure.shape[1]] = sure
            start += size
        self._rounds.clear()
        self._count = 0
        return RowRounds(rows, depths, drafted, np.minimum(accepted, np.maximum(emitted - 1, 0)), confidence)

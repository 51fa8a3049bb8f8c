"""Row-rounds in hand: noted every round, learned in lots, since learning many costs hardly more than learning one.

Knows numbers of rounds; it does not know what is learned from them.
"""

from __future__ import annotations

import numpy as np

from adaptspec.types import BoolArray, FloatArray, IntArray, RoundRecord


class Notes:
    """Rows, depths, tokens drafted and kept, and confidences of up to `room` row-rounds.

    Kept tokens are those that earned something: of an accepted draft that ends the request, the tokens behind its
    end are lost, and the last one stands in for the token that the round would have yielded anyway. So positions
    beyond the end of a request count as rejected: where answers are short, deep drafts do not pay.
    """

    MOST = 128  # row-rounds added at once

    def __init__(self, depth: int, room: int = 1024) -> None:
        self.count = 0
        self._room = room
        self._whole: IntArray = np.zeros((4, room), dtype=np.int64)
        self._confidence: FloatArray = np.full((room, depth), np.nan)

    @property
    def has_room(self) -> bool:
        """For `MOST` more."""
        return self.count + self.MOST <= self._room

    def rounds(self) -> IntArray:
        """Rows, depths, drafted, kept: [4, N]."""
        return self._whole[:, : self.count]

    def confidence(self) -> FloatArray:
        """[N, D]."""
        return self._confidence[: self.count]

    def clear(self) -> None:
        """All is learned."""
        self._confidence[: self.count] = np.nan
        self.count = 0

    def rename(self, row: int, name: int) -> None:
        """A new request is in `row`: what is noted of it was another's, and goes under this name."""
        rows = self._whole[0, : self.count]
        rows[rows == row] = name

    def add(self, record: RoundRecord) -> None:
        """Note a round of one row: four times faster, where a round is shortest, than slices of one."""
        n, whole = self.count, self._whole
        whole[0, n] = record.rows.item()
        whole[2, n] = drafted = record.drafted.item()
        # A row that only caught up was not asked for a draft: its end says nothing of how long drafts go on.
        whole[1, n] = 0 if record.caught_up and not drafted else record.depths.item()
        if drafted:
            # Text that ended early, at a stop string or its limit, says nothing of what was drafted beyond.
            whole[3, n] = min(record.accepted.item(), record.emitted.item())
            sure = record.confidence[0, : self._confidence.shape[1]]
            self._confidence[n, : len(sure)] = sure
        else:
            whole[3, n] = 0
        self.count = n + 1

    def add_off(self, row: int) -> None:
        """Note a round in which this row drafted nothing."""
        self._whole[:, self.count] = row, 0, 0, 0
        self.count += 1

    def add_part(self, record: RoundRecord, part: slice, ran: BoolArray | None = None) -> None:
        """Note some rows of a round, at most `MOST`; those that are not in `ran` [B] drafted nothing."""
        here = slice(self.count, self.count + part.stop - part.start)
        whole, drafted, depths = self._whole, record.drafted[part], record.depths[part]
        if ran is not None:
            drafted, depths = drafted * ran[part], depths * ran[part]
        whole[0, here], whole[2, here] = record.rows[part], drafted
        whole[1, here] = np.where(drafted > 0, depths, 0) if record.caught_up else depths
        kept = np.minimum(record.accepted[part], record.emitted[part], out=whole[3, here])
        if ran is not None:
            kept *= ran[part]
        # What stands where nothing was drafted is never read.
        sure = record.confidence[part, : self._confidence.shape[1]]
        self._confidence[here, : sure.shape[1]] = sure
        self.count = here.stop

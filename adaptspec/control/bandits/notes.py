"""Row-rounds not yet learned. A note costs a few copies; making sense of many costs hardly more than of one.

Knows what a round was made of; not what it was worth.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from adaptspec.types import FloatArray, IntArray, RoundRecord

_ROOM = 2048


@dataclass(frozen=True)
class Played:
    """What rows were about to do in a round: for each its context, its task and its arm, and what lay ahead of it.

    All [B]. `wished` is the depth asked for, `lag` what its drafter had to catch up.
    """

    contexts: IntArray
    tasks: IntArray
    arms: IntArray
    wished: IntArray
    lag: IntArray


@dataclass(frozen=True)
class Rounds:
    """N row-rounds of M rounds. Row-wise arrays are [N]; those of `size` and below [M]."""

    contexts: IntArray
    tasks: IntArray
    arms: IntArray
    wished: IntArray
    lag: IntArray
    depths: IntArray
    drafted: IntArray
    accepted: IntArray
    emitted: IntArray
    number: IntArray  # which of the M
    size: IntArray  # rows that decoded, under whatever policy
    alone: IntArray  # 1 where the round's seconds are those of these rows
    context: FloatArray  # tokens attended to
    caught_up: FloatArray  # tokens that drafters read beyond the usual
    seconds: FloatArray


@dataclass(frozen=True)
class Scores:
    """What a drafter that did not run would have drafted and got accepted in S of the noted row-rounds, all [S]."""

    at: IntArray  # which of the N
    drafted: IntArray
    accepted: IntArray


class Notes:
    """Up to `_ROOM` row-rounds."""

    def __init__(self) -> None:
        self.count = 0
        self._rows: IntArray = np.zeros((10, _ROOM), dtype=np.int64)
        self._rounds: list[tuple[float, ...]] = []
        self._scores: list[tuple[int, IntArray, IntArray]] = []

    def has_room(self, rows: int) -> bool:
        """Whether a round of so many rows can still be noted. One can always be noted right after `clear`."""
        return bool(self.count + rows <= self._rows.shape[1])

    def add(self, played: Played, record: RoundRecord, size: int, *, alone: bool) -> None:
        """Note a round of `size` rows in all; `alone`: its seconds are those of these rows."""
        rows = len(record.rows)
        if rows > self._rows.shape[1]:
            self._rows = np.zeros((10, rows), dtype=np.int64)
        here = slice(self.count, self.count + rows)
        noted = (
            played.contexts,
            played.tasks,
            played.arms,
            played.wished,
            played.lag,
            record.depths,
            record.drafted,
            record.accepted,
            record.emitted,
        )
        if rows == 1:
            self._rows[:9, self.count] = [values.item() for values in noted]
            context = record.context.item()
        else:
            for line, values in zip(self._rows, noted, strict=False):
                line[here] = values
            context = int(record.context.sum())
        self._rows[9, here] = len(self._rounds)
        if record.shadow is not None and record.shadow_drafted is not None:
            self._scores.append((self.count, record.shadow_drafted, record.shadow))
        self._rounds.append((size, alone, context, record.caught_up, record.total_seconds))
        self.count = here.stop

    def rounds(self) -> Rounds:
        """All of them."""
        size, alone, context, caught_up, seconds = np.array(self._rounds, dtype=np.float64).T
        contexts, tasks, arms, wished, lag, depths, drafted, accepted, emitted, number = self._rows[:, : self.count]
        return Rounds(
            contexts=contexts,
            tasks=tasks,
            arms=arms,
            wished=wished,
            lag=lag,
            depths=depths,
            drafted=drafted,
            accepted=accepted,
            emitted=emitted,
            number=number,
            size=size.astype(np.int64),
            alone=alone.astype(np.int64),
            context=context,
            caught_up=caught_up,
            seconds=seconds,
        )

    def scores(self, drafter: int) -> Scores | None:
        """Where a drafter was scored while it did not run; None where nowhere."""
        if not self._scores:
            return None
        at, drafted, accepted = (
            np.concatenate(parts)
            for parts in zip(
                *((first + np.arange(said.shape[1]), said[drafter], got[drafter]) for first, said, got in self._scores),
                strict=True,
            )
        )
        known = accepted >= 0
        return Scores(at[known], drafted[known], accepted[known]) if known.any() else None

    def clear(self) -> None:
        """Forget them."""
        self._scores.clear()
        self.count = 0
        self._rounds.clear()

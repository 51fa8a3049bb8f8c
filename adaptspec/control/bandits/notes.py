"""Row-rounds not yet learned. A note is references only; making sense of many costs hardly more than of one.

Knows what a round was made of; not what it was worth.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from adaptspec.types import BoolArray, FloatArray, IntArray, RoundRecord

# Row-rounds, and rounds, whose records are held in memory meanwhile.
_ROOM, _RECORDS = 2048, 256


@dataclass(frozen=True)
class Played:
    """Whom the rows of a round stood for, and their arms, all [B]; and which batch sizes it is compared with."""

    contexts: IntArray
    tasks: IntArray
    arms: IntArray
    bucket: int


class Note(NamedTuple):
    """A round. `wished` [B] are the depths asked for, `lag` [B] what each row's drafter had to catch up."""

    played: Played
    wished: IntArray
    lag: IntArray
    record: RoundRecord
    size: int  # rows that decoded, under whatever policy
    alone: bool  # its seconds are those of these rows


@dataclass(frozen=True)
class Rounds:
    """N row-rounds of M rounds. Row-wise arrays are [N]; those of `bucket` and below [M]."""

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
    bucket: IntArray
    size: IntArray  # rows that decoded, under whatever policy
    alone: BoolArray  # whether the round's seconds are those of these rows
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
    """Up to `_ROOM` row-rounds, in up to `_RECORDS` rounds."""

    def __init__(self) -> None:
        self.count = 0
        self._notes: list[Note] = []

    def has_room(self, rows: int) -> bool:
        """Whether a round of so many rows can still be noted. One of any size can be right after `clear`."""
        return not self._notes or (self.count + rows <= _ROOM and len(self._notes) < _RECORDS)

    def add(self, note: Note) -> None:
        """Note a round. What it refers to must stay as it is."""
        self._notes.append(note)
        self.count += len(note.lag)

    def tell_of(self, context: int) -> bool:
        """Whether any row of them stood for this context."""
        parts = {id(note.played): note.played for note in self._notes}
        return any(context in played.contexts for played in parts.values())

    def rounds(self) -> Rounds:
        """All of them."""
        notes = self._notes
        records = [note.record for note in notes]
        lines = (
            [note.played.contexts for note in notes],
            [note.played.tasks for note in notes],
            [note.played.arms for note in notes],
            [note.wished for note in notes],
            [note.lag for note in notes],
            [record.depths for record in records],
            [record.drafted for record in records],
            [record.accepted for record in records],
            [record.emitted for record in records],
            [record.context for record in records],
        )
        whole = np.concatenate([part for line in lines for part in line]).reshape(len(lines), self.count)
        contexts, tasks, arms, wished, lag, depths, drafted, accepted, emitted, context = whole
        rows = [len(note.lag) for note in notes]
        first = list(itertools.accumulate(rows[:-1], initial=0))
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
            number=np.repeat(np.arange(len(notes)), rows),
            bucket=np.array([note.played.bucket for note in notes]),
            size=np.array([note.size for note in notes]),
            alone=np.array([note.alone for note in notes]),
            context=np.add.reduceat(context, first).astype(np.float64),
            caught_up=np.array([record.caught_up for record in records], dtype=np.float64),
            seconds=np.array([record.total_seconds for record in records]),
        )

    def scores(self, drafter: int) -> Scores | None:
        """Where a drafter was scored while it did not run; None where nowhere."""
        at, drafted, accepted, first = [], [], [], 0
        for note in self._notes:
            said, got = note.record.shadow_drafted, note.record.shadow
            if said is not None and got is not None:
                at.append(first + np.arange(len(note.lag)))
                drafted.append(said[drafter])
                accepted.append(got[drafter])
            first += len(note.lag)
        if not at:
            return None
        scores = Scores(np.concatenate(at), np.concatenate(drafted), np.concatenate(accepted))
        known = scores.accepted >= 0
        return Scores(scores.at[known], scores.drafted[known], scores.accepted[known]) if known.any() else None

    def clear(self) -> None:
        """Forget them."""
        self._notes.clear()
        self.count = 0

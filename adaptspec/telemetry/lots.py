"""Rounds in lots that are added up at once, with a row of its own for each request that ran in them.

The engine gives its rows to the next request as soon as one ends; sums over a lot need to tell them apart. Knows
records and names of requests only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from adaptspec.types import FloatArray, IntArray, RoundRecord

# So many requests may begin within one lot.
_FRESH = 256
_PER_ROW = ("depths", "reasons", "drafter", "drafted", "accepted", "emitted", "context")


class RequestRows:
    """A row for each request that runs. None is given away twice in one lot."""

    def __init__(self, max_rows: int) -> None:
        """`max_rows`: requests that run at once; one more row is for those that nobody has announced."""
        self.size = max_rows + _FRESH + 1
        self._stray = self.size - 1
        self._of: dict[str, int] = {}
        self._free = deque(range(self._stray))
        self._fresh = 0

    @property
    def full(self) -> bool:
        """Whether the lot must end before another request begins."""
        return self._fresh >= _FRESH

    def enter(self, name: str) -> int:
        """A request begins; its row."""
        if not self._free:
            # Ends of requests have been missed: all that run get new rows when they are next seen.
            self._of, self._free = {}, deque(range(self._stray))
        self._fresh += 1
        row = self._of[name] = self._free.popleft()
        return row

    def leave(self, name: str) -> None:
        """A request has ended."""
        row = self._of.pop(name, None)
        if row is not None:
            self._free.append(row)

    def renew(self) -> None:
        """A new lot begins."""
        self._fresh = 0

    def of(self, names: tuple[str, ...]) -> IntArray:
        """The rows of some requests."""
        return np.array([self._of.get(name, self._stray) for name in names], dtype=np.int64)


class Lot:
    """Rounds in order, and which rows their requests have."""

    def __init__(self) -> None:
        self.records: list[RoundRecord] = []
        self.decoding: list[RoundRecord] = []  # those with rows
        self._rows: list[IntArray] = []
        self._batch: tuple[str, ...] = ()

    def add(self, record: RoundRecord, rows: RequestRows) -> None:
        """One more round."""
        self.records.append(record)
        if record.request_ids:
            self.decoding.append(record)
            same = record.request_ids == self._batch
            self._rows.append(self._rows[-1] if same else rows.of(record.request_ids))
            self._batch = record.request_ids

    @property
    def rows(self) -> IntArray:
        """[N] of all rows of the rounds that decoded, one after the other."""
        return np.concatenate(self._rows)


def together(records: Sequence[RoundRecord], rows: IntArray) -> RoundRecord:
    """Rounds as one of many `rows` [N]. Of confidence the first column is kept.

    Who they belong to is left out, and what whole rounds cost is left as it was in the first.
    """
    first_token = np.concatenate([_first_token(record) for record in records])
    depths, reasons, drafter, drafted, accepted, emitted, context = (
        np.concatenate([getattr(record, name) for record in records]) for name in _PER_ROW
    )
    return replace(
        records[0],
        request_ids=("",) * len(rows),
        rows=rows,
        depths=depths,
        reasons=reasons,
        drafter=drafter,
        drafted=drafted,
        accepted=accepted,
        emitted=emitted,
        context=context,
        confidence=first_token,
        entropy=first_token,
        tasks=np.concatenate([r.tasks if len(r.tasks) else np.zeros_like(r.rows) for r in records]),
        policies=rows[:0],
        provenance=None,
        expected=None,
        shadow=_scores([record.shadow for record in records], records),
        shadow_drafted=_scores([record.shadow_drafted for record in records], records),
    )


def _first_token(record: RoundRecord) -> FloatArray:
    """Confidence in the first drafted token [B, 1]."""
    if record.confidence.shape[1]:
        return record.confidence[:, :1]
    return np.full((len(record.rows), 1), np.nan)


def _scores(scores: Sequence[IntArray | None], records: Sequence[RoundRecord]) -> IntArray | None:
    """[drafters, N], -1 where a round has none; None where no round has."""
    count = next((len(score) for score in scores if score is not None), None)
    if count is None:
        return None
    parts = [
        np.full((count, len(record.rows)), -1) if score is None else score
        for score, record in zip(scores, records, strict=True)
    ]
    return np.concatenate(parts, axis=1)

"""The requests of another engine, each in a row of arrays while it is here."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from adaptspec.arrays import FloatArray, IntArray
from adaptspec.request import Request
from adaptspec.results import SpeculationStats, Timings

UNBOUND = 2**31


class Guests:
    """Rows of requests by their ids: what each holds, and how deep it may draft."""

    def __init__(self, rows: int, *, model_len: int, behind: int) -> None:
        """`behind`: tokens that each row will surely have got before drafts that are decided now are verified."""
        self.rows: dict[str, int] = {}
        self.requests: dict[str, Request] = {}
        self.changes = 0  # of requests and ceilings: as long as it is the same, requests have the same rows and limits
        self.serials: IntArray = np.zeros(rows, dtype=np.int64)  # no two requests have had the same one
        self._free = list(range(rows))[::-1]
        self._model_len, self._behind = model_len, behind
        self._prompts, self.written, self._ends, self.ceilings = (np.zeros(rows, dtype=np.int64) for _ in range(4))
        self._sums: IntArray = np.zeros((4, rows), dtype=np.int64)  # rounds, those that drafted, drafted, accepted
        self._times: FloatArray = np.zeros((3, rows))  # arrived, admitted, first token: NaN before it

    def enter(self, request: Request, waited: float = 0.0) -> int | None:
        """Its row; None where there is none left, or it is here already. It has `waited` so many seconds."""
        if request.id in self.rows or not self._free:
            return None
        self.changes += 1
        row = self.rows[request.id] = self._free.pop()
        self.requests[request.id] = request
        self.serials[row] = self.changes
        now = time.monotonic()
        self._times[:, row] = now - max(waited, 0.0), now, np.nan
        prompt, depth = len(request.prompt), request.speculation.max_depth
        self._prompts[row], self.written[row], self._sums[:, row] = prompt, 0, 0
        self._ends[row] = min(request.sampling.max_tokens, max(self._model_len - prompt, 0))
        self.ceilings[row] = UNBOUND if depth is None else depth
        return row

    def leave(self, name: str) -> tuple[int, Request] | None:
        """The row and the request of one that goes; None for a stranger. Its row is as it was until the next comes."""
        row = self.rows.pop(name, None)
        if row is None:
            return None
        self.changes += 1
        self._free.append(row)
        return row, self.requests.pop(name)

    def forbid_drafts(self) -> None:
        """None of those that are here may draft until it ends."""
        self.changes += 1
        self.ceilings[list(self.rows.values())] = 0

    def find(self, names: Sequence[str]) -> tuple[Sequence[str], IntArray]:
        """Those of these requests that are here, and their rows [B]."""
        rows = list(map(self.rows.get, names))
        if None in rows:
            names = [name for name, row in zip(names, rows, strict=True) if row is not None]
        return names, np.array([row for row in rows if row is not None], dtype=np.int64)

    def most(self, name: str, deepest: int) -> int:
        """How deep one may draft at most; not at all who is not here, since nobody knows what they want."""
        return min(deepest, int(self.ceilings[self.rows[name]])) if name in self.rows else 0

    def left(self, rows: IntArray) -> IntArray:
        """What each of them may still write, beside the token of a round without drafts [B]."""
        left: IntArray = np.maximum(self._ends[rows] - self.written[rows] - self._behind, 0)
        return left

    def context(self, rows: IntArray) -> IntArray:
        """Tokens that they hold [B]."""
        held: IntArray = self._prompts[rows] + self.written[rows]
        return held

    def count(self, rows: IntArray, drafted: IntArray, accepted: IntArray, ended: float) -> None:
        """For `stats` and `timings`: they had a round, which ended at this time on the monotonic clock."""
        self._times[2, rows] = np.fmin(self._times[2, rows], ended)
        self._sums[:, rows] += np.stack((np.ones_like(drafted), drafted > 0, drafted, accepted))

    def stats(self, row: int, request: Request) -> SpeculationStats:
        rounds, draft_rounds, drafted, accepted = self._sums[:, row].tolist()
        asked = request.speculation
        return SpeculationStats(
            asked.policy or "", rounds, draft_rounds, drafted, accepted, task=asked.task, nodes=drafted
        )

    def timings(self, row: int) -> Timings:
        """Of one that ends now."""
        arrived, admitted, first = self._times[:, row].tolist()
        return Timings(arrived, admitted, None if math.isnan(first) else first, time.monotonic())


class StepOutcome(NamedTuple):
    """What a step did for the requests that still run, all [B]: tokens drafted, accepted and emitted."""

    ids: Sequence[str]
    rows: IntArray
    drafted: IntArray
    accepted: IntArray
    emitted: IntArray

    @classmethod
    def of(cls, guests: Guests, ids: Sequence[str], counts: IntArray, rows: IntArray | None = None) -> StepOutcome:
        """`counts` [3, N]: tokens drafted, accepted and emitted, of all `ids`. `rows` [N] are theirs, if known."""
        if rows is None:
            here, rows = guests.find(ids)
            if len(here) < len(ids):
                ids, counts = here, counts[:, [name in guests.rows for name in ids]]
        drafted, accepted, emitted = counts
        return cls(ids, rows, drafted, np.minimum(accepted, drafted), emitted)

    def take(self, index: IntArray) -> StepOutcome:
        """The outcome of some of the rows, by position."""
        ids = [self.ids[position] for position in index.tolist()]
        return StepOutcome(ids, self.rows[index], self.drafted[index], self.accepted[index], self.emitted[index])

"""The requests of another engine, each in a row of arrays while it is here."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from adaptspec.request import Request
from adaptspec.types import FloatArray, IntArray, SpeculationStats, Timings

UNBOUND = 2**31


class Guests:
    """Rows of requests by their ids: what each holds, and how deep it may draft."""

    def __init__(self, rows: int, *, model_len: int, behind: int) -> None:
        """`behind`: tokens that each row will surely have got before drafts that are decided now are verified."""
        self.rows: dict[str, int] = {}
        self.requests: dict[str, Request] = {}
        self._free = list(range(rows))[::-1]
        self._model_len, self._behind = model_len, behind
        self._prompts, self.written, self._ends, self.ceilings = (np.zeros(rows, dtype=np.int64) for _ in range(4))
        self._sums: IntArray = np.zeros((4, rows), dtype=np.int64)  # rounds, those that drafted, drafted, accepted
        self._more: dict[int, int] = {}  # tokens by row that are not in `written` yet
        self._times: FloatArray = np.zeros((3, rows))  # arrived, admitted, first token: NaN before it

    def enter(self, request: Request, waited: float = 0.0) -> int | None:
        """Its row; None where there is none left, or it is here already. It has `waited` so many seconds."""
        if request.id in self.rows or not self._free:
            return None
        row = self.rows[request.id] = self._free.pop()
        self.requests[request.id] = request
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
        self.written[row] += self._more.pop(row, 0)
        self._free.append(row)
        return row, self.requests.pop(name)

    def of(self, names: Sequence[str]) -> IntArray:
        """The rows of these [B], all of whom are here."""
        return np.array([self.rows[name] for name in names], dtype=np.int64)

    def most(self, name: str, deepest: int) -> int:
        """How deep one may draft at most; not at all who is not here, since nobody knows what they want."""
        return min(deepest, int(self.ceilings[self.rows[name]])) if name in self.rows else 0

    def later(self, names: Sequence[str], emitted: Sequence[int]) -> None:
        """They have got so many tokens, which `catch_up` counts: in a step of which nobody wants to know more."""
        for name, tokens in zip(names, emitted, strict=True):
            if name in self.rows:
                self._more[self.rows[name]] = self._more.get(self.rows[name], 0) + tokens

    def catch_up(self) -> None:
        """Count what came `later`."""
        for row, tokens in self._more.items():
            self.written[row] += tokens
        self._more.clear()

    def left(self, rows: IntArray) -> IntArray:
        """What each of them may still write, beside the token of a round without drafts [B]."""
        left: IntArray = np.maximum(self._ends[rows] - self.written[rows] - self._behind, 0)
        return left

    def context(self, rows: IntArray) -> IntArray:
        """Tokens that they hold [B]."""
        held: IntArray = self._prompts[rows] + self.written[rows]
        return held

    def count(self, rows: IntArray, drafted: IntArray, accepted: IntArray) -> None:
        """For `stats` and `timings`: they had a round."""
        self._times[2, rows] = np.fmin(self._times[2, rows], time.monotonic())
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


class Told(NamedTuple):
    """What a step has come to, of requests that are here: all [B]."""

    ids: Sequence[str]
    rows: IntArray
    drafted: IntArray
    accepted: IntArray
    emitted: IntArray

    @classmethod
    def of(cls, guests: Guests, ids: Sequence[str], counts: tuple[Sequence[int], ...]) -> Told:
        drafted, accepted, emitted = np.array(counts, dtype=np.int64)
        here = [place for place, name in enumerate(ids) if name in guests.rows]
        if len(here) < len(ids):
            ids, drafted, accepted, emitted = [ids[i] for i in here], drafted[here], accepted[here], emitted[here]
        return cls(ids, guests.of(ids), drafted, np.minimum(accepted, drafted), emitted)

    def take(self, places: list[int]) -> Told:
        own = (one[places] for one in self[1:])
        return Told([self.ids[place] for place in places], *own)

"""Isolates the failures of a drafter: they cost drafts, never answers.

Whatever happens while drafts are made, verification gives the target's text without them. So an error means that
nothing is drafted in that round, and scores that are no numbers end the draft; the rows' caches are dropped, to be
read again, and the drafter rests, longer each time it fails again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

import numpy as np

from adaptspec.arrays import BoolArray, IntArray
from adaptspec.drafting.drafter import Drafter, DraftJob, ModelDrafter, ModelFreeDrafter, Observing, RowStart
from adaptspec.models.draft import Draft, NodeChoices

SHORTEST_REST, LONGEST_REST = 0.1, 60.0  # seconds
_NOTHING = (0, 0)
_T = TypeVar("_T")
_log = logging.getLogger(__name__)


def isolated(drafter: Drafter) -> IsolatedDrafter:
    """The drafter, but that nothing is raised and a broken draft ends where it breaks."""
    kind = IsolatedModelFreeDrafter if isinstance(drafter, ModelFreeDrafter) else IsolatedDrafter
    return kind(drafter)


class IsolatedDrafter:
    """Calls a drafter, and answers with nothing where that fails."""

    def __init__(self, inner: Drafter, clock: Callable[[], float] = time.monotonic) -> None:
        self.inner = inner
        self.name = inner.name
        self.non_anticipating = inner.non_anticipating  # failing is no choice: an error strikes whatever was drawn
        self._clock = clock
        self._until = 0.0  # it rests until then
        self._rest = 0.0  # how long it rested last

    def cache_gap(self, row: int, length: int) -> int:
        return self._guarded(lambda: self.inner.cache_gap(row, length), length, (row,))

    def propose(self, job: DraftJob) -> Draft:
        """See `Drafter.propose`; nothing while it rests."""
        rows = job.rows.tolist()
        draft = None if self._resting() else self._guarded(lambda: self.inner.propose(job), None, rows)
        if draft is None:
            return Draft.empty(len(rows))
        broken = _broken(draft)
        if not draft.work or not broken.any():
            return draft
        self.broke(rows)
        # What was drawn before stays: which scores break may depend on it.
        return draft.without(broken)

    def catch_up(self, job: DraftJob) -> tuple[IntArray, int]:
        """See `ModelDrafter`, for those that are; nobody drafts while it rests."""
        nobody = np.zeros_like(job.depths), 0
        if self._resting() or not isinstance(inner := self.inner, ModelDrafter):
            return nobody
        return self._guarded(lambda: inner.catch_up(job), nobody, job.rows.tolist())

    def broke(self, rows: Iterable[int]) -> None:
        """A draft for these rows was drawn from scores that are no numbers."""
        self._failed(ArithmeticError("the draft's scores are not numbers"), rows)

    def commit(self, row: int, valid: int, tokens: list[int]) -> None:
        try:  # a closure for each row of each round would be felt
            self.inner.commit(row, valid, tokens)
        except Exception as error:  # noqa: BLE001
            self._failed(error, (row,))

    def absorb(self, row: int, choices: NodeChoices) -> None:
        """See `Observing`, for those that are."""
        if isinstance(inner := self.inner, Observing):
            self._guarded(lambda: inner.absorb(row, choices), None, (row,))

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """See `ModelDrafter.copy_prefix`; other drafters have nothing to copy."""
        if isinstance(inner := self.inner, ModelDrafter):
            self._guarded(lambda: inner.copy_prefix(source, target, length), None, (target,))

    def free(self, row: int) -> None:
        self._guarded(lambda: self.inner.free(row), None, ())

    def _guarded(self, call: Callable[[], _T], otherwise: _T, rows: Iterable[int]) -> _T:
        """What `call` returns; `otherwise` if it fails, after which the drafter forgets `rows` and rests."""
        try:
            return call()
        except Exception as error:  # noqa: BLE001
            self._failed(error, rows)
            return otherwise

    def _resting(self) -> bool:
        return self._clock() < self._until

    def _failed(self, error: Exception, rows: Iterable[int]) -> None:
        now = self._clock()
        # Well for as long as it rested last: that was another matter.
        again = self._rest and now < self._until + self._rest
        self._rest = min(2 * self._rest, LONGEST_REST) if again else SHORTEST_REST
        self._until = now + self._rest
        _log.warning("%s failed (%s: %s); no drafts for %.1f s", self.name, type(error).__name__, error, self._rest)
        for row in rows:
            self.free(row)


class IsolatedModelFreeDrafter(IsolatedDrafter):
    """The same for a drafter that can say beforehand what it would draft."""

    inner: ModelFreeDrafter

    def begin(self, row: int, start: RowStart) -> None:
        self._guarded(lambda: self.inner.begin(row, start), None, (row,))

    def offer(self, row: int, tokens: list[int], most: int) -> list[float]:
        return [] if self._resting() else self._guarded(lambda: self.inner.offer(row, tokens, most), [], (row,))

    def shadow(self, row: int, tokens: list[int], start: int) -> tuple[int, int]:
        if self._resting():
            return _NOTHING
        return self._guarded(lambda: self.inner.shadow(row, tokens, start), _NOTHING, (row,))


def _broken(draft: Draft) -> BoolArray:
    """Which tokens [B, N] were drawn from scores that are no numbers: they have no confidence."""
    inside = np.arange(draft.tokens.shape[1]) < draft.counts[:, None]
    broken: BoolArray = np.isnan(draft.confidence) & inside
    return broken

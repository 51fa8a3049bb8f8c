"""A drafter whose failures cost drafts, never answers.

Drafts are guesses: whatever happens while they are made, verification gives the target's text without them. So an
error means that nothing is drafted in that round, and scores that are no numbers end the draft; the rows' caches are
dropped, to be read again, and the drafter rests, longer each time it fails again. Knows drafters; not why they fail.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

import numpy as np

from adaptspec.drafting.drafter import Drafter, DraftJob, Lookup, Shadow
from adaptspec.models.draft import Draft
from adaptspec.types import IntArray

SHORTEST_REST, LONGEST_REST = 0.1, 60.0  # seconds
_log = logging.getLogger(__name__)


class TolerantDrafter:
    """The drafter it is given, but that nothing is raised and a broken draft ends where it breaks."""

    def __init__(self, inner: Drafter, clock: Callable[[], float] = time.monotonic) -> None:
        self.inner = inner
        self._clock = clock
        self._until = 0.0  # it rests until then
        self._rest = 0.0  # how long it rested last

    @property
    def name(self) -> str:
        """See `Drafter.name`."""
        return self.inner.name

    @property
    def non_anticipating(self) -> bool:
        """See `Drafter.non_anticipating`. Failing is no choice: an error is taken to strike whatever was drawn."""
        return self.inner.non_anticipating

    def lag(self, row: int, length: int) -> int:
        """See `Drafter.lag`."""
        try:
            return self.inner.lag(row, length)
        except Exception as error:  # noqa: BLE001
            self._failed(error, np.array([row]))
            return length

    def propose(self, job: DraftJob) -> Draft:
        """See `Drafter.propose`; nothing while it rests."""
        if self._resting():
            return _nothing(job)
        try:
            draft = self.inner.propose(job)
        except Exception as error:  # noqa: BLE001
            self._failed(error, job.rows)
            return _nothing(job)
        sound = _sound(draft) if draft.steps else draft.counts
        if np.array_equal(sound, draft.counts):
            return draft
        self._failed(ArithmeticError("the draft's scores are not numbers"), job.rows)
        # What was drawn before stays: which scores break may depend on it.
        return draft.cut(sound)

    def commit(self, row: int, valid: int) -> None:
        """See `Drafter.commit`."""
        try:
            self.inner.commit(row, valid)
        except Exception as error:  # noqa: BLE001
            self._failed(error, np.array([row]))

    def free(self, row: int) -> None:
        """See `Drafter.free`."""
        try:
            self.inner.free(row)
        except Exception as error:  # noqa: BLE001
            self._failed(error, np.array([], dtype=np.int64))

    def _resting(self) -> bool:
        return self._clock() < self._until

    def _failed(self, error: Exception, rows: IntArray) -> None:
        now = self._clock()
        # Well for as long as it rested last: that was another matter.
        again = self._rest and now < self._until + self._rest
        self._rest = min(2 * self._rest, LONGEST_REST) if again else SHORTEST_REST
        self._until = now + self._rest
        _log.warning("%s failed (%s: %s); no drafts for %.1f s", self.name, type(error).__name__, error, self._rest)
        for row in rows.tolist():
            self.free(row)


class TolerantLookup(TolerantDrafter):
    """The same for a drafter that can say beforehand what it would draft."""

    inner: Drafter
    _lookup: Lookup

    def __init__(self, inner: Drafter, lookup: Lookup, clock: Callable[[], float] = time.monotonic) -> None:
        """`lookup` is the same object as `inner`."""
        super().__init__(inner, clock)
        self._lookup = lookup

    def offer(self, row: int, tokens: list[int], most: int) -> int:
        """See `Lookup.offer`."""
        try:
            return 0 if self._resting() else self._lookup.offer(row, tokens, most)
        except Exception as error:  # noqa: BLE001
            self._failed(error, np.array([row]))
            return 0

    def expect(self, row: int, tokens: Sequence[int], start: int) -> None:
        """See `Lookup.expect`."""
        try:
            self._lookup.expect(row, tokens, start)
        except Exception as error:  # noqa: BLE001
            self._failed(error, np.array([row]))

    def shadow(self, row: int, tokens: list[int], start: int) -> Shadow:
        """See `Lookup.shadow`."""
        try:
            return Shadow(0, 0) if self._resting() else self._lookup.shadow(row, tokens, start)
        except Exception as error:  # noqa: BLE001
            self._failed(error, np.array([row]))
            return Shadow(0, 0)


def tolerant(drafter: Drafter) -> Drafter:
    """The drafter, made tolerant."""
    return TolerantLookup(drafter, drafter) if isinstance(drafter, Lookup) else TolerantDrafter(drafter)


def _sound(draft: Draft) -> IntArray:
    """How many tokens [B] of each row were drawn from scores that are numbers: the others have no confidence."""
    known: IntArray = np.logical_and.accumulate(~np.isnan(draft.confidence), axis=1).sum(axis=1)
    return np.minimum(known, draft.counts)


def _nothing(job: DraftJob) -> Draft:
    rows = len(job.rows)
    empty = np.zeros((rows, 0))
    return Draft(np.zeros((rows, 0), dtype=np.int64), np.zeros(rows, dtype=np.int64), empty, empty)

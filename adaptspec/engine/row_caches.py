"""Caches of the target and of the drafters' models, addressed by the same row numbers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from adaptspec.drafting.fault_guard import GuardedDrafter
from adaptspec.models.runner import Runner


class Caches(Protocol):
    """The caches of all rows: `RowCaches`, or those of a simulation.

    A request has one row number in all of them. `length`, `reserve` and `share_of` refer to the target's cache. `evict`
    is called when memory is short; it frees the least recently used idle row and returns False if there is none.
    Room for drafts is reserved in the same manner: idle rows are evicted for drafts, running requests never are.
    """

    evict: Callable[[], bool]

    def share_of(self, rows: Collection[int]) -> float:
        """See `Runner.share_of`."""

    def reserve(self, row: int, length: int) -> bool:
        """Reserve room for `length` tokens in total in `row`; False if memory is short with all idle rows evicted."""

    def length(self, row: int) -> int:
        """Tokens of `row` that the target has cached."""

    def copy_prefix(self, source: int, target: int, length: int) -> int:
        """See `Runner.copy_prefix`; returns the tokens that the target copied. If memory is short, rows are evicted.

        A drafter that could not copy the prefix reads the missing tokens before it next drafts.
        """

    def free(self, row: int) -> None:
        """Free the row in all caches."""


class RowCaches:
    """The caches of a target and of its drafters' models."""

    def __init__(self, target: Runner, drafters: Sequence[GuardedDrafter]) -> None:
        """`drafters` are those that run a model."""
        self._target, self._drafters = target, drafters
        self.evict: Callable[[], bool] = lambda: False

    def share_of(self, rows: Collection[int]) -> float:
        return self._target.share_of(rows)

    def reserve(self, row: int, length: int) -> bool:
        while not self._target.reserve(row, length):
            if not self.evict():
                return False
        return True

    def length(self, row: int) -> int:
        return self._target.length(row)

    def copy_prefix(self, source: int, target: int, length: int) -> int:
        held = self._target.copy_prefix(source, target, length)
        while source != target and held < length and self.evict():
            self._target.free(target)
            held = self._target.copy_prefix(source, target, length)
        for drafter in self._drafters:
            drafter.copy_prefix(source, target, held)
        return held

    def free(self, row: int) -> None:
        self._target.free(row)
        for drafter in self._drafters:
            drafter.free(row)

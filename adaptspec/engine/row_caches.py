"""The caches of the target and of the models that draft for it, which number their rows alike."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from adaptspec.drafting.isolated_drafter import IsolatedDrafter
from adaptspec.models.runner import Runner


class RowCaches:
    """A row is a request's place in all of them. Lengths and room are those of the target's.

    `evict` is called where memory is short: it gives some back that no running request needs, and returns whether it
    could.
    """

    def __init__(self, target: Runner, drafters: Sequence[IsolatedDrafter]) -> None:
        """`drafters` are those that run a model."""
        self._target, self._drafters = target, drafters
        self.evict: Callable[[], bool] = lambda: False

    @property
    def context(self) -> int:
        """The most tokens that a row can hold."""
        return self._target.info.context

    def share_of(self, rows: Collection[int]) -> float:
        """See `Runner.share_of`."""
        return self._target.share_of(rows)

    def reserve(self, row: int, length: int) -> bool:
        """Make room for `length` tokens in all in `row`; False if memory is short though all was evicted."""
        while not self._target.reserve(row, length):
            if not self.evict():
                return False
        return True

    def length(self, row: int) -> int:
        """Tokens of `row` that the target has cached."""
        return self._target.length(row)

    def copy_prefix(self, source: int, target: int, length: int) -> int:
        """See `Runner.copy_prefix`, whose result is the target's; where memory is short, some is evicted.

        What a drafter's model lacks then, it reads when it next drafts.
        """
        held = self._target.copy_prefix(source, target, length)
        if source != target and held < length and self.evict():
            self._target.free(target)
            held = self._target.copy_prefix(source, target, length)
        for drafter in self._drafters:
            drafter.copy_prefix(source, target, held)
        return held

    def free(self, row: int) -> None:
        """Forget the row everywhere."""
        self._target.free(row)
        for drafter in self._drafters:
            drafter.free(row)

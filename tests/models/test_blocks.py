"""The cache's accounting: blocks are never lost, never shared, and a refused request changes nothing."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from adaptspec.models.blocks import BlockAllocator

ROWS = st.integers(0, 5)


class Accounting(RuleBasedStateMachine):
    """Random reservations, rollbacks and frees, against what each row must hold."""

    @initialize(blocks=st.integers(1, 12), size=st.integers(1, 5))
    def start(self, blocks: int, size: int) -> None:
        self.size = size
        self.allocator = BlockAllocator(blocks, size)
        self.expected: dict[int, int] = {}

    @rule(row=ROWS, length=st.integers(0, 40))
    def reserve(self, row: int, length: int) -> None:
        before = {r: self.allocator.held(r) for r in range(6)}
        free = self.allocator.free_blocks
        needed = -(-length // self.size)
        extra = max(0, needed - self.expected.get(row, 0))
        granted = self.allocator.reserve(row, length)
        assert granted == (extra <= free)
        if granted:
            self.expected[row] = max(needed, self.expected.get(row, 0))
            assert self.allocator.held(row)[: len(before[row])] == before[row], "a reservation must not move tokens"
        else:
            assert {r: self.allocator.held(r) for r in range(6)} == before
            assert self.allocator.free_blocks == free

    @rule(row=ROWS, length=st.integers(0, 40))
    def truncate(self, row: int, length: int) -> None:
        before = self.allocator.held(row)
        self.allocator.truncate(row, length)
        self.expected[row] = min(-(-length // self.size), self.expected.get(row, 0))
        assert self.allocator.held(row) == before[: self.expected[row]], "a rollback must keep the first blocks"

    @rule(row=ROWS, times=st.integers(1, 2))
    def release(self, row: int, times: int) -> None:
        for _ in range(times):
            self.allocator.release(row)
        self.expected[row] = 0

    @invariant()
    def nothing_is_lost_or_shared(self) -> None:
        if not hasattr(self, "allocator"):
            return
        held = [block for row in range(6) for block in self.allocator.held(row)]
        assert len(held) == len(set(held)), "a block is in two rows"
        assert len(held) + self.allocator.free_blocks == self.allocator.blocks
        for row in range(6):
            assert len(self.allocator.held(row)) == self.expected.get(row, 0)
            assert self.allocator.capacity(row) == self.expected.get(row, 0) * self.size


TestAccounting = Accounting.TestCase
TestAccounting.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)

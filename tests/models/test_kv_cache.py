"""The cache: blocks are never lost or shared, tokens lie where the block table says, and what fits is used."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from adaptspec.errors import EngineError, ModelError
from adaptspec.models.kv_cache import BlockAllocator, CacheLimits, CachePlan, CacheShape, KVCache, plan_cache

SHAPE = CacheShape(layers=2, kv_heads=2, head_dim=4)


def cache(*, tokens: int = 64, context: int = 16, block_size: int = 16) -> KVCache:
    return KVCache(SHAPE, CachePlan(tokens, context, block_size), torch.float32, torch.device("cpu"))


def test_slots_of_small_blocks_are_distinct_and_follow_the_table() -> None:
    kv = cache(block_size=4)
    assert not kv.in_place
    kv.reserve(0, 6)
    kv.reserve(1, 9)
    kv.reserve(0, 13)
    slots = [kv.slots(0, 0, 13), kv.slots(1, 0, 9)]
    assert len(np.unique(np.concatenate(slots))) == 22
    assert list(slots[0] % 4) == [i % 4 for i in range(13)]


def test_truncate_frees_surplus_blocks_and_lengths_follow() -> None:
    kv = cache(block_size=4)
    kv.reserve(0, 16)
    kv.set_length(0, 15)
    kv.truncate(0, 5)
    assert kv.length(0) == 5
    assert kv.free_share == 56 / 64
    kv.truncate(0, 9)
    assert kv.length(0) == 5, "a rollback never makes a row longer"
    kv.free(0)
    kv.free(0)
    assert kv.length(0) == 0
    assert kv.free_share == 1.0


def _memory_bytes(name: str) -> int:
    """A figure of this process from /proc: `RssAnon` (resident memory of its own) or `VmSize` (its address space)."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_first_tokens_take_small_pages_and_the_cache_is_given_back() -> None:
    """30 layers and 16 rows, as in a model of 135 M parameters: 480 first tokens must not take 2 MB each."""
    address_space, resident = _memory_bytes("VmSize"), _memory_bytes("RssAnon")
    plan = CachePlan(tokens=16 * 8192, context=8192, block_size=8192, rows=16)
    shape = CacheShape(layers=30, kv_heads=3, head_dim=64)
    kv = KVCache(shape, plan, torch.float32, torch.device("cpu"))
    for row in range(16):
        assert kv.reserve(row, 1)
        slots = torch.from_numpy(kv.slots(row, 0, 1))
        for layer in kv.pool:
            layer[slots] = 1.0
    assert _memory_bytes("RssAnon") - resident < 64 * 2**20
    assert _memory_bytes("VmSize") - address_space >= 16 * 8192 * shape.bytes_per_token(torch.float32)
    keys, values = kv.reader(3, 0, 2, written=1)(29)
    del kv, layer, values
    assert keys[0, :, :, 0].tolist() == [[1.0, 0.0]] * 3, "views keep the memory alive"
    del keys
    assert _memory_bytes("VmSize") - address_space < 2**30


def test_a_refused_reservation_changes_nothing() -> None:
    kv = cache(tokens=20, block_size=4)
    kv.reserve(0, 12)
    kv.set_length(0, 12)
    assert not kv.reserve(1, 9)
    with pytest.raises(EngineError, match="no room for the tokens of row 1"):
        kv.require(1, 9)
    assert kv.free_share == 8 / 20
    assert kv.length(0) == 12


ROWS = st.integers(0, 5)


class Accounting(RuleBasedStateMachine):
    """Random reservations, rollbacks and frees, against what each row must hold."""

    @initialize(blocks=st.integers(1, 12), size=st.integers(1, 5))
    def start(self, blocks: int, size: int) -> None:
        self.size = size
        self.allocator = BlockAllocator(blocks, size)
        self.expected: dict[int, int] = {}

    def _free_blocks(self) -> int:
        return round(self.allocator.free_share * self.allocator.blocks)

    @rule(row=ROWS, length=st.integers(0, 40))
    def reserve(self, row: int, length: int) -> None:
        before = {r: self.allocator.held(r) for r in range(6)}
        free = self._free_blocks()
        needed = -(-length // self.size)
        extra = max(0, needed - self.expected.get(row, 0))
        granted = self.allocator.reserve(row, length)
        assert granted == (extra <= free)
        if granted:
            self.expected[row] = max(needed, self.expected.get(row, 0))
            assert self.allocator.held(row)[: len(before[row])] == before[row], "a reservation must not move tokens"
        else:
            assert {r: self.allocator.held(r) for r in range(6)} == before
            assert self._free_blocks() == free

    @rule(row=ROWS, length=st.integers(0, 40))
    def truncate(self, row: int, length: int) -> None:
        before = self.allocator.held(row)
        self.allocator.truncate(row, length)
        self.expected[row] = min(-(-length // self.size), self.expected.get(row, 0))
        assert self.allocator.held(row) == before[: self.expected[row]], "a rollback must keep the first blocks"

    @rule(row=ROWS, times=st.integers(1, 2))
    def free(self, row: int, times: int) -> None:
        for _ in range(times):
            self.allocator.free(row)
        self.expected[row] = 0

    @rule(source=ROWS, other=ROWS, length=st.integers(0, 40))
    def share(self, source: int, other: int, length: int) -> None:
        """A row that holds nothing begins with full blocks of another."""
        if source == other or self.allocator.held(other):
            return
        before = self._free_blocks()
        shared = self.allocator.share(source, other, length)
        self.expected[other] = min(length // self.size, self.expected.get(source, 0))
        assert shared == self.expected[other] * self.size <= length
        assert self.allocator.held(other) == self.allocator.held(source)[: self.expected[other]]
        assert self._free_blocks() == before

    @rule(row=ROWS, length=st.integers(0, 40))
    def cut(self, row: int, length: int) -> None:
        """A row that goes on from a position writes to no block that another row holds."""
        length = min(length, self.expected.get(row, 0) * self.size)
        kept = self.allocator.writable_prefix(row, length)
        assert length - self.size < kept <= length
        self.truncate(row, kept)
        others = {block for other in range(6) if other != row for block in self.allocator.held(other)}
        assert not kept % self.size or self.allocator.held(row)[-1] not in others

    @invariant()
    def nothing_is_lost(self) -> None:
        if not hasattr(self, "allocator"):
            return
        held = {block for row in range(6) for block in self.allocator.held(row)}
        assert len(held) + self._free_blocks() == self.allocator.blocks
        assert self.allocator.share_of(range(6)) == len(held) / self.allocator.blocks
        for row in range(6):
            assert len(self.allocator.held(row)) == self.expected.get(row, 0)
            assert self.allocator.capacity(row) == self.expected.get(row, 0) * self.size


TestAccounting = Accounting.TestCase
TestAccounting.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)


EACH = 256  # bytes per token
CPU = torch.device("cpu")


def plan(
    *,
    tokens: int | None = None,
    context: int | None = None,
    ceiling: bool = False,
    block: int | None = None,
    room: int | None = None,
) -> CachePlan:
    limits = CacheLimits(4, tokens, context, context_is_ceiling=ceiling, block_size=block, room=room)
    return plan_cache("some/model", EACH, CPU, longest=1000, limits=limits)


def test_on_cpu_a_block_is_a_whole_row_and_all_rows_fit() -> None:
    assert plan() == CachePlan(4000, 1000, 1000, 4)
    assert plan(context=64) == CachePlan(256, 64, 64, 4)


def test_fewer_tokens_mean_shorter_rows_unless_the_context_is_given() -> None:
    assert plan(tokens=400) == CachePlan(400, 100, 100, 4)
    assert plan(tokens=400, context=300) == CachePlan(300, 300, 300, 4)


def test_small_blocks_share_the_tokens() -> None:
    assert plan(tokens=400, context=90, block=16) == CachePlan(96 * 4, 90, 16, 4)
    assert plan(tokens=200, context=90, block=16) == CachePlan(192, 90, 16, 4)
    assert plan(tokens=200, block=32) == CachePlan(192, 192, 32, 4)


@pytest.mark.parametrize(("tokens", "context"), [(None, 2000), (None, 3), (100, 500)])
def test_what_cannot_fit_is_refused(tokens: int | None, context: int) -> None:
    with pytest.raises(ModelError, match=r"^some/model: .*context"):
        plan(tokens=tokens, context=context)


def test_a_context_that_is_a_ceiling_is_cut_to_the_models_own() -> None:
    """A draft may hold less than its target."""
    assert plan(context=2000, ceiling=True) == CachePlan(4000, 1000, 1000, 4)
    assert plan(context=64, ceiling=True) == CachePlan(256, 64, 64, 4)


def test_a_share_of_the_memory_is_kept() -> None:
    """Two models on one device: neither takes what is meant for the other."""
    assert plan(room=800 * EACH) == CachePlan(800, 200, 200, 4)

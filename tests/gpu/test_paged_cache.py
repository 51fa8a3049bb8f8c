"""The block table that the device has is the allocator's, however rows come, grow and go."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.gpu.paged_cache import PagedCache
from adaptspec.models.kv_cache import CachePlan, CacheShape

ROWS, BLOCK = 4, 8
CPU = torch.device("cpu")


def _cache() -> PagedCache:
    return PagedCache(CacheShape(1, 1, 4), CachePlan(12 * BLOCK, 6 * BLOCK, BLOCK, ROWS), torch.float32, CPU)


@settings(max_examples=60, deadline=None)
@given(
    moves=st.lists(
        st.tuples(
            st.sampled_from(["reserve", "truncate", "send", "changes"]), st.integers(0, ROWS - 1), st.integers(0, 48)
        ),
        max_size=40,
    )
)
def test_the_table_on_the_device_is_what_rows_hold(moves: list[tuple[str, int, int]]) -> None:
    """Told whole or entry by entry; nobody's block is handed to no row."""
    cache = _cache()
    nobody = cache.held(cache.nobody)[0]
    for move, row, length in [*moves, ("changes", 0, 48), ("send", 0, 0)]:
        if move == "reserve":
            cache.reserve(row, length)
        elif move == "truncate":
            cache.set_length(row, min(length, cache.capacity(row)))
            cache.truncate(row, length)
        elif move == "send":
            cache.send()
        else:
            entries, blocks = cache.changes(3)
            assert len(entries) <= 3
            cache.table.view(-1)[torch.tensor(entries, dtype=torch.int64)] = torch.tensor(blocks, dtype=torch.int32)
    for row in range(ROWS):
        held = cache.held(row)
        assert nobody not in held
        assert cache.table[row, : len(held)].tolist() == list(held)
    assert set(cache.table[cache.nobody].tolist()) == {nobody}


def test_nobody_takes_no_share_of_the_memory() -> None:
    cache = _cache()
    assert cache.free_share == 1.0
    assert cache.reserve(0, 6 * BLOCK)
    assert cache.reserve(1, 6 * BLOCK)
    assert cache.free_share == 0.0
    assert not cache.reserve(2, 1)

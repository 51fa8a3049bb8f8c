"""The block table that the device has is the allocator's, however rows come, grow and go."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.gpu.paged_cache import PagedCache
from adaptspec.models.kv_cache import CachePlan, CacheShape, KVCache

ROWS, BLOCK = 4, 8
CPU, REAL = torch.device("cpu"), torch.float32


def _cache() -> PagedCache:
    return PagedCache(CacheShape(1, 1, 4), CachePlan(12 * BLOCK, 6 * BLOCK, BLOCK, ROWS), torch.float32, CPU)


def _tell(cache: PagedCache, entries: int, moves: int) -> None:
    """By a plan with room for so many, of which the cache's part is the second."""
    host = {"entries": np.full((2, 2, entries), -1), "moves": np.full((2, 2, moves), -1)}
    moving = cache.write(host, 1)
    cache.begin({name: torch.from_numpy(array) for name, array in host.items()}, 1, moving=moving)


@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    rows=st.lists(st.integers(1, 24), min_size=1, max_size=3),
    told=st.sampled_from(["send", "plan", "small plan"]),
)
def test_what_is_kept_lies_as_in_a_cache_that_moves_at_once(data: st.DataObject, rows: list[int], told: str) -> None:
    """Of several rows; told with a round or by itself, and as well where blocks were given back meanwhile. What is told
    once more moves nothing again, and padding has its own block wherever it may lie.
    """
    cache, plain = _cache(), KVCache(CacheShape(1, 1, 4), CachePlan(12 * BLOCK, 6 * BLOCK, BLOCK, ROWS), REAL, CPU)
    drawn = [(length, data.draw(st.integers(1, 12))) for length in rows]
    places = [sorted(data.draw(st.sets(st.integers(0, nodes - 1)))) for _, nodes in drawn]
    for one in (cache, plain):
        for row, (length, nodes) in enumerate(drawn):
            assert one.reserve(row, length + nodes)
            one.set_length(row, length + nodes)
            one.pool[0][one.slots(row, 0, length + nodes)] = torch.arange(length + nodes)[:, None] + 100.0 * row
        for row, (length, _) in enumerate(drawn):
            one.keep(row, length, places[row])
        one.reserve(ROWS - 1, BLOCK)  # nothing is written there before the next pass
    if told == "send":
        cache.send()
    else:
        _tell(cache, 20, 100 if told == "plan" else 1)
    _tell(cache, 20, 1)
    assert set(cache.table[cache.nobody].tolist()) == set(cache.held(cache.nobody))
    for row, (before, _) in enumerate(drawn):
        assert cache.table[row, : len(cache.held(row))].tolist() == list(cache.held(row))
        assert cache.held(cache.nobody)[0] not in cache.held(row)
        length = before + len(places[row])
        assert cache.length(row) == plain.length(row) == length
        mine, its = (one.pool[0][one.slots(row, 0, length)] for one in (cache, plain))
        assert torch.equal(mine, its)

"""The cache's addressing: each row's tokens lie where its block table says, and views see exactly them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from adaptspec.models.kv_cache import CacheShape, KVCache

SHAPE = CacheShape(layers=2, kv_heads=2, head_dim=4)


def cache(*, tokens: int = 64, context: int = 16, block_size: int = 16) -> KVCache:
    return KVCache(
        SHAPE, tokens=tokens, context=context, block_size=block_size, dtype=torch.float32, device=torch.device("cpu")
    )


def test_bytes_per_token_counts_keys_and_values_of_all_layers() -> None:
    assert SHAPE.bytes_per_token(torch.bfloat16) == 2 * 2 * 2 * 4 * 2


def test_views_read_what_targets_and_slots_wrote() -> None:
    """Both ways of writing land where attention reads."""
    kv = cache()
    assert kv.reserve(3, 10)
    assert kv.in_place
    data = torch.randn(5, SHAPE.width)
    kv.targets(3, 2, 7)[1].copy_(data)
    assert torch.equal(kv.pool[1][torch.from_numpy(kv.slots(3, 2, 7))], data)
    keys, values = kv.views(3, 2, 7)
    half = SHAPE.width // 2
    assert torch.equal(keys[1][0], data[:, :half].view(5, 2, 4).transpose(0, 1))
    assert torch.equal(values[1][0], data[:, half:].view(5, 2, 4).transpose(0, 1))


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


def test_a_refused_reservation_changes_nothing() -> None:
    kv = cache(tokens=20, block_size=4)
    kv.reserve(0, 12)
    kv.set_length(0, 12)
    assert not kv.reserve(1, 9)
    assert kv.free_share == 8 / 20
    assert kv.length(0) == 12


def test_writing_beyond_the_reservation_is_caught() -> None:
    kv = cache()
    with pytest.raises(AssertionError, match="no room"):
        kv.set_length(0, 1)

"""What a forward pass plans once: which tokens go on to the head, and where keys and values are stored."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from adaptspec.models.attention import Span
from adaptspec.models.config import read_decoder_config
from adaptspec.models.kv_cache import KVCache
from adaptspec.models.rope import rotations
from adaptspec.models.step import Step

CONFIG = read_decoder_config(
    {
        "model_type": "llama",
        "vocab_size": 20,
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 16,
    }
)


def planned(spans: Sequence[Span], block_size: int = 16, dtype: torch.dtype = torch.float32) -> tuple[Step, KVCache]:
    cache = KVCache(
        CONFIG.cache_shape, tokens=64, context=16, block_size=block_size, dtype=dtype, device=torch.device("cpu")
    )
    for span in spans:
        cache.reserve(span.row, span.end)
    table = rotations(CONFIG.rope, CONFIG.head_dim, 16).unsqueeze(1)
    return Step(CONFIG, cache, spans, table, torch.empty(0, dtype=dtype)), cache


@pytest.mark.parametrize(
    ("wanted", "expected"), [([3, 2], [0, 1, 2, 3, 4]), ([1, 2], [2, 3, 4]), ([0, 1], [4]), ([0, 0], [])]
)
def test_the_last_wanted_tokens_of_each_row_are_picked(wanted: list[int], expected: list[int]) -> None:
    step, _ = planned([Span(0, 0, 3), Span(1, 4, 6)])
    values = torch.arange(5)
    first, second = step.pick(wanted, values, values * 10)
    assert first.tolist() == expected
    assert second.tolist() == [10 * i for i in expected]


@pytest.mark.parametrize("block_size", [16, 3])
@pytest.mark.parametrize("spans", [[Span(2, 0, 5)], [Span(0, 0, 3), Span(1, 0, 2)]])
def test_keys_are_stored_rotated_and_values_as_they_are(spans: list[Span], block_size: int) -> None:
    """One row and several rows take different ways of writing: both must land in the right slots."""
    torch.manual_seed(0)
    step, cache = planned(spans, block_size)
    qkv = torch.randn(5, 16)  # two query heads, one key head, one value head, of four dimensions
    keys, values = qkv[:, 8:12].clone(), qkv[:, 12:].clone()
    step.attend(1, qkv, None)
    slots = torch.cat([torch.from_numpy(cache.slots(*span)) for span in spans])
    positions = [position for span in spans for position in range(span.start, span.end)]
    turned = keys.view(torch.complex64) * rotations(CONFIG.rope, 4, 16)[positions]
    torch.testing.assert_close(cache.pool[1][slots], torch.cat([turned.view(torch.float32), values], 1))


def test_16_bit_rotation_is_the_float32_rotation_rounded() -> None:
    torch.manual_seed(0)
    spans = [Span(0, 0, 5)]
    wide, wide_cache = planned(spans)
    narrow, narrow_cache = planned(spans, dtype=torch.bfloat16)
    qkv = torch.randn(5, 16).bfloat16()
    wide.attend(0, qkv.float(), None)
    narrow.attend(0, qkv, None)
    slots = torch.from_numpy(wide_cache.slots(*spans[0]))
    assert torch.equal(narrow_cache.pool[0][slots], wide_cache.pool[0][slots].bfloat16())

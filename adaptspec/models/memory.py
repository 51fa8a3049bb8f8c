"""How much key-value cache fits: tokens from bytes, blocks from tokens. Knows sizes, not tensors' contents."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from adaptspec.errors import EngineError, ModelError
from adaptspec.models.kv_cache import CacheShape

CPU_SHARE = 0.5  # of all memory: pages are only used once written, and the same machine gives the same sizes
CUDA_SHARE = 0.85  # of what is free when the model has been loaded
CUDA_BLOCK = 32  # tokens
SHORTEST_CONTEXT = 16


@dataclass(frozen=True)
class CachePlan:
    """Sizes of a cache, in tokens."""

    tokens: int
    context: int
    block_size: int


def plan_cache(
    shape: CacheShape,
    dtype: torch.dtype,
    device: torch.device,
    *,
    longest: int,
    max_rows: int,
    cache_tokens: int | None,
    context: int | None,
    block_size: int | None = None,
) -> CachePlan:
    """Choose the sizes of a cache for up to `max_rows` rows; ModelError if what is asked for cannot fit.

    `longest` is the model's own limit. Without `context`, rows get as much of it as fits for all of them.
    Without `block_size`, a block is a whole row on CPU and CUDA_BLOCK tokens on CUDA. On CPU, memory is
    only used once it is written.
    """
    if context is not None and not SHORTEST_CONTEXT <= context <= longest:
        raise ModelError(f"context is {context} tokens; this model takes {SHORTEST_CONTEXT} to {longest}")
    room = cache_tokens if cache_tokens is not None else _bytes_for_cache(device) // shape.bytes_per_token(dtype)
    if block_size is None and device.type != "cpu":
        block_size = CUDA_BLOCK
    if context is None:
        share = room // max_rows if block_size is None else room // block_size * block_size
        context = min(longest, max(share, SHORTEST_CONTEXT))
    block_size = context if block_size is None else min(block_size, context)
    # Rounded up per row: a row whose last block is only half full still takes it.
    row_tokens = -(-context // block_size) * block_size
    tokens = min(room // block_size * block_size, max_rows * row_tokens)
    if tokens < row_tokens:
        raise ModelError(
            f"the cache has room for {room} tokens, but one request may need {row_tokens}; "
            "choose a shorter context or give the cache more tokens"
        )
    return CachePlan(tokens, context, block_size)


def require_room(reserved: bool, row: int) -> None:
    """Raise EngineError if a forward pass found no room for the tokens it was given."""
    if not reserved:
        raise EngineError(f"the cache has no room for the tokens of row {row}; give the cache more tokens")


def _bytes_for_cache(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0] * CUDA_SHARE)
    return int(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * CPU_SHARE)

"""How much key-value cache fits: tokens from bytes, blocks from tokens."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from adaptspec.errors import ModelError

CPU_SHARE = 0.5  # of all memory: pages are only used once written, and the same machine gives the same sizes
CUDA_SHARE = 0.85  # of what is free when the model has been loaded
CUDA_BLOCK = 32  # tokens
SHORTEST_CONTEXT = 16


@dataclass(frozen=True)
class CacheLimits:
    """What is asked of a cache for up to `max_rows` rows at a time; None is as much as fits.

    `cache_tokens` bounds the tokens of all rows together, `context` those of one row; with `context_is_ceiling` a model
    that takes fewer is not refused. `block_size` is the allocation unit, None for the device's best. `room` is how many
    bytes the cache may take, None for what `bytes_for_cache` gives.
    """

    max_rows: int
    cache_tokens: int | None = None
    context: int | None = None
    context_is_ceiling: bool = False
    block_size: int | None = None
    room: int | None = None


@dataclass(frozen=True)
class CachePlan:
    """Sizes of a cache, in tokens."""

    tokens: int
    context: int
    block_size: int


def plan_cache(
    name: object, bytes_per_token: int, device: torch.device, *, longest: int, limits: CacheLimits
) -> CachePlan:
    """Choose the sizes of a cache; ModelError, with the model's `name`, if what is asked for cannot fit.

    `longest` is the model's own limit. Without a context, rows get as much of it as fits for all of them.
    Without a block size, a block is a whole row on CPU, where memory is only used once it is written, and CUDA_BLOCK
    tokens on CUDA.
    """
    context, block_size, max_rows = limits.context, limits.block_size, limits.max_rows
    if context is not None and limits.context_is_ceiling:
        context = min(context, longest)
    if context is not None and not SHORTEST_CONTEXT <= context <= longest:
        raise ModelError(f"{name}: context is {context} tokens; this model takes {SHORTEST_CONTEXT} to {longest}")
    room = limits.cache_tokens
    if room is None:
        room = (bytes_for_cache(device) if limits.room is None else limits.room) // bytes_per_token
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
            f"{name}: the cache has room for {room} tokens, but one request may need {row_tokens}; "
            "choose a shorter context or give the cache more tokens"
        )
    return CachePlan(tokens, context, block_size)


def bytes_for_cache(device: torch.device) -> int:
    """How many bytes the caches of all models together may take, once all weights are loaded."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0] * CUDA_SHARE)
    return int(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * CPU_SHARE)

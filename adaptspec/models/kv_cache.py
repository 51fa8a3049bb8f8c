"""The keys and values of one model, in a pool of slots addressed through a block table."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from adaptspec.errors import EngineError
from adaptspec.types import IntArray


@dataclass(frozen=True)
class CacheShape:
    """What one token takes: a key and a value per layer and head."""

    layers: int
    kv_heads: int
    head_dim: int

    @property
    def width(self) -> int:
        """Numbers per token and layer: all keys, then all values."""
        return 2 * self.kv_heads * self.head_dim

    def bytes_per_token(self, dtype: torch.dtype) -> int:
        """Bytes one cached token takes over all layers."""
        return self.layers * self.width * dtype.itemsize


class KVCache:
    """Cached tokens of all rows: `pool[layer][slot]` is one token's keys and values, [slots, width].

    `tokens` is the room of the whole pool, `context` the most one row may hold.
    """

    def __init__(
        self,
        shape: CacheShape,
        *,
        tokens: int,
        context: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.shape = shape
        self.context = context
        self._blocks = BlockAllocator(tokens // block_size, block_size)
        self._lengths: dict[int, int] = {}
        slots = self._blocks.blocks * block_size
        # Uninitialised on purpose: the system hands out pages when they are first written, so rows that are
        # never used cost nothing. Nothing may read a slot before it is written: it could hold a NaN.
        self._pool = torch.empty(shape.layers, slots, shape.width, dtype=dtype, device=device)
        self.pool = self._pool.unbind(0)

    @property
    def in_place(self) -> bool:
        """Whether every row's tokens are consecutive slots."""
        return self._blocks.block_size >= self.context

    @property
    def free_share(self) -> float:
        """The share of the room that no row holds."""
        return self._blocks.free_share

    def reserve(self, row: int, length: int) -> bool:
        """Make room for `length` tokens in all; False, and nothing changes, if memory is short."""
        assert length <= self.context, f"row {row} asks for {length} tokens, the context is {self.context}"
        return self._blocks.reserve(row, length)

    def grow(self, row: int, count: int) -> int:
        """Make room for `count` more tokens, and return the length before; EngineError if memory is short."""
        length = self.length(row)
        self._blocks.require(row, length + count)
        return length

    def length(self, row: int) -> int:
        """Tokens cached in `row`."""
        return self._lengths.get(row, 0)

    def set_length(self, row: int, length: int) -> None:
        """Count the tokens just written to `row`."""
        assert length <= self._blocks.capacity(row), f"row {row} holds no room for {length} tokens"
        self._lengths[row] = length

    def truncate(self, row: int, length: int) -> None:
        """Forget the tokens of `row` from `length` on; blocks no longer needed are free at once."""
        self._lengths[row] = min(length, self._lengths.get(row, 0))
        self._blocks.truncate(row, self._lengths[row])

    def free(self, row: int) -> None:
        """Forget `row`; freeing a free row does nothing."""
        self._lengths.pop(row, None)
        self._blocks.release(row)

    def slots(self, row: int, first: int, end: int) -> IntArray:
        """The slots of the tokens `first` to `end` (exclusive) of `row`, cached or about to be."""
        size = self._blocks.block_size
        positions = np.arange(first, end, dtype=np.int64)
        table = np.asarray(self._blocks.held(row), dtype=np.int64)
        slots: IntArray = table[positions // size] * size + positions % size
        return slots

    def first_slot(self, row: int) -> int:
        """Where the tokens of `row` begin, if they are consecutive."""
        return self._blocks.held(row)[0] * self._blocks.block_size

    def views(self, row: int, first: int, end: int) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
        """Per layer, the keys and the values of tokens `first` to `end` of `row`, if consecutive.

        Each is a view [1, kv_heads, end - first, head_dim].
        """
        shape, stride = self.shape, self._pool.stride()
        size = (shape.layers, 1, shape.kv_heads, end - first, shape.head_dim)
        strides = (stride[0], 1, shape.head_dim, stride[1], 1)
        offset = (self.first_slot(row) + first) * stride[1]
        # One strided view instead of a chain of slices: this runs for every row of every forward pass.
        keys = self._pool.as_strided(size, strides, offset).unbind(0)
        values = self._pool.as_strided(size, strides, offset + shape.width // 2).unbind(0)
        return keys, values


class BlockAllocator:
    """Hands blocks to rows and takes them back. Free and held blocks always add up to `blocks`."""

    def __init__(self, blocks: int, block_size: int) -> None:
        assert blocks >= 1
        assert block_size >= 1
        self.blocks = blocks
        self.block_size = block_size
        self._free = list(range(blocks - 1, -1, -1))
        self._held: dict[int, list[int]] = {}

    @property
    def free_share(self) -> float:
        """Blocks that no row holds, of all blocks."""
        return len(self._free) / self.blocks

    def held(self, row: int) -> tuple[int, ...]:
        """The blocks of `row`, in the order of its tokens."""
        return tuple(self._held.get(row, ()))

    def capacity(self, row: int) -> int:
        """Tokens that fit the blocks `row` holds."""
        return len(self._held.get(row, ())) * self.block_size

    def reserve(self, row: int, length: int) -> bool:
        """Hold blocks for `length` tokens in all; False, and nothing changes, if too few are free."""
        missing = self._needed(length) - len(self._held.get(row, ()))
        if missing > len(self._free):
            return False
        if missing > 0:
            self._held.setdefault(row, []).extend(self._free.pop() for _ in range(missing))
        return True

    def require(self, row: int, length: int) -> None:
        """Reserve; EngineError if too few are free."""
        if not self.reserve(row, length):
            raise EngineError(f"the cache has no room for the tokens of row {row}; give the cache more tokens")

    def truncate(self, row: int, length: int) -> None:
        """Give back the blocks that `length` tokens do not need."""
        held = self._held.get(row, [])
        while len(held) > self._needed(length):
            self._free.append(held.pop())
        if not held:
            self._held.pop(row, None)

    def release(self, row: int) -> None:
        """Give back all blocks of `row`; does nothing if it holds none."""
        self.truncate(row, 0)

    def _needed(self, length: int) -> int:
        return -(-length // self.block_size)

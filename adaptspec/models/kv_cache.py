"""The keys and values of one model, in a pool of slots addressed through a block table; and how much of it fits."""

from __future__ import annotations

import errno
import math
import mmap
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from adaptspec.arrays import IntArray
from adaptspec.errors import EngineError, ModelError

CPU_SHARE = 0.5  # of all memory: pages are only used once written, and the same machine gives the same sizes
CUDA_SHARE = 0.85  # of what is free when the model has been loaded
CUDA_BLOCK = 32  # tokens
BLOCK = 64  # tokens that attention on a CPU reads at a time: see `attention`
SHORTEST_CONTEXT = 16


class BlockAllocator:
    """Hands blocks, room for `block_size` consecutive tokens, to rows and takes them back.

    They are handed out last-freed-first, so that a lightly used cache touches few pages of memory. Rows with the
    same prefix may share blocks; a shared block is freed with its last holder.
    """

    def __init__(self, blocks: int, block_size: int) -> None:
        assert blocks >= 1
        assert block_size >= 1
        self.blocks = blocks
        self.block_size = block_size
        self._free = list(range(blocks - 1, -1, -1))
        self._held: dict[int, list[int]] = {}
        self._holders = [0] * blocks  # how many rows hold each block

    @property
    def free_share(self) -> float:
        return len(self._free) / self.blocks

    def share_of(self, rows: Collection[int]) -> float:
        """The share of all blocks that these rows hold."""
        return len({block for row in rows for block in self.held(row)}) / self.blocks

    def held(self, row: int) -> tuple[int, ...]:
        return tuple(self._held.get(row, ()))

    def capacity(self, row: int) -> int:
        return len(self._held.get(row, ())) * self.block_size

    def reserve(self, row: int, length: int) -> bool:
        """Hold blocks for `length` tokens in all; False, and nothing changes, if too few are free."""
        missing = self._needed(length) - len(self._held.get(row, ()))
        if missing > len(self._free):
            return False
        for _ in range(missing):
            self._hold(row, self._free.pop())
        return True

    def require(self, row: int, length: int) -> None:
        if length > self.capacity(row) and not self.reserve(row, length):
            raise EngineError(f"the cache has no room for the tokens of row {row}; give the cache more tokens")

    def truncate(self, row: int, length: int) -> None:
        held = self._held.get(row, [])
        while len(held) > self._needed(length):
            block = held.pop()
            self._holders[block] -= 1
            if not self._holders[block]:
                self._free.append(block)
        if not held:
            self._held.pop(row, None)

    def free(self, row: int) -> None:
        """Give back all blocks of `row`; does nothing if it holds none."""
        self.truncate(row, 0)

    def share(self, source: int, target: int, length: int) -> int:
        """Let the empty row `target` share the blocks that the first `length` tokens of `source` fill.

        Returns the number of tokens in these blocks.
        """
        assert not self.held(target), f"row {target} is in use"
        shared = self.held(source)[: length // self.block_size]
        for block in shared:
            self._hold(target, block)
        return len(shared) * self.block_size

    def writable_prefix(self, row: int, length: int) -> int:
        """The longest prefix of the first `length` tokens after which `row` can write: `length`, or the start of its
        last block if other rows hold that block.
        """
        block, rest = divmod(length, self.block_size)
        held = self._held.get(row, [])
        return length - rest if rest and block < len(held) and self._holders[held[block]] > 1 else length

    def _hold(self, row: int, block: int) -> None:
        self._held.setdefault(row, []).append(block)
        self._holders[block] += 1

    def _needed(self, length: int) -> int:
        return -(-length // self.block_size)


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
        return self.layers * self.width * dtype.itemsize


@dataclass(frozen=True)
class CachePlan:
    """Sizes of a cache, in tokens: of the whole pool, the most of one row, the allocation unit; and the most rows."""

    tokens: int
    context: int
    block_size: int
    rows: int = 1


class KVCache(BlockAllocator):
    """Cached tokens of all rows: `pool[layer][slot]` is one token's keys and values, [slots, width].

    Where one block holds a whole row (the default on CPU), a row's tokens are consecutive and attention reads them in
    place.
    """

    def __init__(
        self, shape: CacheShape, plan: CachePlan, dtype: torch.dtype, device: torch.device, *, paged: bool = False
    ) -> None:
        """`paged`: its blocks are found one by one, even if one of them holds a whole row."""
        super().__init__(plan.tokens // plan.block_size, plan.block_size)
        self.shape = shape
        self.context = plan.context
        self._lengths: dict[int, int] = {}
        self._cleared: dict[int, int] = {}  # places of a row that hold nothing of former ones
        # A row in consecutive slots is read to the end of its last block.
        self.in_place = plan.block_size >= plan.context and not paged  # every row has consecutive slots
        self._stride = -(-plan.block_size // BLOCK) * BLOCK if self.in_place else plan.block_size
        size = shape.layers, self.blocks * self._stride, shape.width
        if device.type == "cpu":
            # Attention reads beyond a row's end, where a NaN would spread though it is masked.
            self._pool = untouched_zeros(math.prod(size) * dtype.itemsize).view(dtype).view(size)
        else:
            self._pool = torch.empty(size, dtype=dtype, device=device)  # nothing is read before it is written
        self.pool = self._pool.unbind(0)

    def reserve(self, row: int, length: int) -> bool:
        assert length <= self.context, f"row {row} asks for {length} tokens, the context is {self.context}"
        return super().reserve(row, length)

    def length(self, row: int) -> int:
        return self._lengths.get(row, 0)

    def set_length(self, row: int, length: int) -> None:
        """Count the tokens just written to `row`."""
        assert length <= self.capacity(row), f"row {row} holds no room for {length} tokens"
        self._lengths[row] = length

    def truncate(self, row: int, length: int) -> None:
        """Forget the tokens of `row` from `length` on; blocks no longer needed are free at once."""
        self._lengths[row] = length = min(length, self._lengths.get(row, 0))
        if length <= self.capacity(row) - self.block_size:
            super().truncate(row, length)
        if not self.held(row):
            self._cleared.pop(row, None)

    def keep(self, row: int, base: int, places: Sequence[int]) -> None:
        """See `Runner.keep`. Keys are rotated by their depth, so they stay right wherever they lie."""
        slots = self.slots(row, base, base + places[-1] + 1).tolist() if places else []
        self.move([(slots[place], slots[i]) for i, place in enumerate(places) if place > i])
        self.truncate(row, base + len(places))

    def copy_prefix(self, source: int, target: int, length: int) -> int:
        """See `Runner.copy_prefix`. Full blocks are shared, the rest is copied."""
        length = min(length, self.length(source))
        if source == target:
            length = self.writable_prefix(target, length)
            self.truncate(target, length)
            return length
        # A row in consecutive slots has one block, which it goes on to write.
        shared = 0 if self.in_place else self.share(source, target, length)
        if length > shared:
            if self.reserve(target, length):
                self._copy(source, target, shared, length)
            else:
                length = shared
        self._lengths[target] = length
        return length

    def _copy(self, source: int, target: int, first: int, end: int) -> None:
        """Copy tokens `first` to `end` (exclusive) of a row to the same positions of another."""
        if self.in_place:
            from_, to = self.first_slot(source), self.first_slot(target)
            for layer in self.pool:
                layer[to + first : to + end] = layer[from_ + first : from_ + end]
        else:
            slots = (self.slots(row, first, end).tolist() for row in (source, target))
            self.move(list(zip(*slots, strict=True)))

    def repeat(self, row: int, length: int) -> None:
        """Have `row` hold so many tokens: those that it holds, again and again. Room must be reserved."""
        held = self.length(row)
        slots = torch.from_numpy(self.slots(row, 0, length)).to(self._pool.device)
        for layer in self.pool:
            own = layer.index_select(0, slots[:held])
            layer.index_copy_(0, slots, own.repeat(-(-length // held), 1)[:length])
        self.set_length(row, length)

    def move(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy what slots hold, each (from, to)."""
        for source, target in pairs:
            self._pool[:, target].copy_(self._pool[:, source])

    def flush(self) -> None:
        """Carry out moves that a cache collects; this one moves at once. Call it before a pass."""

    def slots(self, row: int, first: int, end: int) -> IntArray:
        """The slots of the tokens `first` to `end` (exclusive) of `row`, cached or about to be."""
        size = self.block_size
        positions = np.arange(first, end, dtype=np.int64)
        table = np.asarray(self.held(row), dtype=np.int64)
        slots: IntArray = table[positions // size] * self._stride + positions % size
        return slots

    def first_slot(self, row: int) -> int:
        """Where the tokens of `row` begin, if they are consecutive."""
        return self._held[row][0] * self._stride

    def clear_beyond(self, row: int, end: int) -> None:
        """Make zeros of what the places of `row` up to `end` hold of former rows: masked, a NaN would still spread.

        A NaN of its own ends the request, and the row with it.
        """
        cleared = self._cleared.get(row, 0)
        if end <= cleared:
            return
        self._cleared[row] = end
        if self.in_place:
            start, length = self.first_slot(row), self._lengths.get(row, 0)
            self._pool[:, start + max(cleared, length) : start + end].zero_()

    def reader(
        self, row: int, first: int, end: int, *, written: int
    ) -> Callable[[int], tuple[torch.Tensor, torch.Tensor]]:
        """Of a layer, keys and values [1, kv_heads, n, head_dim] of n places of `row`, of which `written` are its own.

        They are those at the time of a call, and of consecutive slots nothing is copied.
        """
        shape, stride = self.shape, self._pool.stride()
        if self.in_place:
            size = (shape.layers, 1, shape.kv_heads, end - first, shape.head_dim)
            strides = (stride[0], stride[0], shape.head_dim, stride[1], 1)
            offset = (self.first_slot(row) + first) * stride[1]
            # One strided view of all layers instead of a chain of slices for each: it is made for every pass.
            keys = self._pool.as_strided(size, strides, offset).unbind(0)
            values = self._pool.as_strided(size, strides, offset + shape.width // 2).unbind(0)
            return lambda layer: (keys[layer], values[layer])
        held = torch.from_numpy(self.slots(row, first, written)).to(self._pool.device)

        def gathered(layer: int) -> tuple[torch.Tensor, torch.Tensor]:
            found = F.pad(self.pool[layer].index_select(0, held), (0, 0, 0, end - first - len(held)))
            parts = found.view(1, end - first, 2, shape.kv_heads, shape.head_dim).permute(2, 0, 3, 1, 4)
            return parts[0], parts[1]

        return gathered


def untouched_zeros(size: int) -> torch.Tensor:
    """Zeros on the CPU, uint8 [size], that take no memory until they are written.

    The system adds one small page (4 kB on most machines) at the first write to it. numpy would ask for huge pages
    (2 MB): a cache writes the first token of each row to one distant place per layer, so that most of each huge page
    would stay empty. The memory is returned to the system when the last tensor that uses it is deleted.
    """
    if not hasattr(mmap, "MADV_NOHUGEPAGE"):  # not Linux: there numpy does not ask for huge pages
        return torch.from_numpy(np.zeros(size, dtype=np.uint8))
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        # This kernel is built without transparent huge pages: there is nothing to switch off.
    return torch.frombuffer(memory, dtype=torch.uint8)


class CachedRows:
    """What `Runner` asks of rows, answered by a cache, and which layers are captured."""

    def __init__(self, cache: KVCache) -> None:
        self._rows = cache
        self._captured: tuple[int, ...] = ()

    def capture_states(self, layers: Sequence[int]) -> None:
        """See `CapturingRunner`."""
        self._captured = tuple(layers)

    @property
    def free_memory(self) -> float:
        return self._rows.free_share

    def share_of(self, rows: Collection[int]) -> float:
        return self._rows.share_of(rows)

    def reserve(self, row: int, length: int) -> bool:
        return self._rows.reserve(row, length)

    def length(self, row: int) -> int:
        return self._rows.length(row)

    def truncate(self, row: int, length: int) -> None:
        self._rows.truncate(row, length)

    def keep(self, row: int, base: int, places: Sequence[int]) -> None:
        self._rows.keep(row, base, places)

    def copy_prefix(self, source: int, target: int, length: int) -> int:
        return self._rows.copy_prefix(source, target, length)

    def free(self, row: int) -> None:
        self._rows.free(row)


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
    return CachePlan(tokens, context, block_size, max_rows)


def bytes_for_cache(device: torch.device) -> int:
    """How many bytes the caches of all models together may take, once all weights are loaded."""
    if device.type == "cuda":
        torch.cuda.empty_cache()  # what loading took and left: torch keeps it, and the device counts it as used
        return int(torch.cuda.mem_get_info(device)[0] * CUDA_SHARE)
    return int(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * CPU_SHARE)

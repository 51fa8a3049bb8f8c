"""Passes over a paged cache on a GPU: their arrays in one upload, their sizes, and what all layers do.

A token's results have the same bits in every pass: attention adds in an order that depends on the token's position
alone (see `attention_plan`), and matrix products run with numbers of tokens for which their rows have the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import NamedTuple

import numpy as np
import torch

from adaptspec.arrays import IntArray
from adaptspec.gpu.attention_plan import (
    AttentionPlan,
    HeadNorm,
    WorkLists,
    Workspace,
    num_splits,
    tree_bits,
    work_lists,
)
from adaptspec.gpu.graphs import host_memory
from adaptspec.gpu.tensor_parallel import ALONE, RankGroup
from adaptspec.models.async_runner import to_device
from adaptspec.models.attention import Heads, Span, positions
from adaptspec.models.config import DecoderConfig
from adaptspec.models.kv_cache import CachePlan, CacheShape, KVCache
from adaptspec.models.layers import Linear, RmsNorm, rotations
from adaptspec.models.weights import LayerWeights

# Tokens of every product where rows have other bits in products of other sizes. While 16-bit weights are read once,
# GPUs compute 150 to 280 tokens (A100 153, H200 206, B200 281), so 128 take little longer than one.
TILE = 128
# Otherwise passes are padded to these widths, and longer ones are computed in parts of the last.
WIDTHS = (16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
HEAD_TOKENS = 256  # most tokens of a product of the LM head, whose results are the largest of a pass
# Bytes for sums of splits: 64 tokens of an 8B model behind 128k of context, 256 behind 32k. In wider passes one program
# walks over the splits of a tile: there are tiles enough for all processors.
WORKSPACE_BYTES = 300_000_000
_FIELDS: Mapping[str, tuple[torch.dtype, int]] = {  # of a pass, with values per token
    "tokens": (torch.int64, 1),
    "seen": (torch.int64, 1),
    "slots": (torch.int64, 1),
    "wanted": (torch.int64, 1),
    "positions": (torch.int32, 1),
    "base": (torch.int32, 1),
    "tiles": (torch.int32, 3),
}
_PADDING = {"base": -1}
_SUMS = "allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction"  # settings of torch
_HEADER = 16  # bytes before the fields: the number of work items
_NO_ROW = -1


class PagedCache(KVCache):
    """A cache of blocks, with one more that belongs to no row: padding is written there.

    Moved tokens (see `KVCache.keep`) are collected until the next pass.
    """

    def __init__(
        self, shape: CacheShape, plan: CachePlan, dtype: torch.dtype, device: torch.device, group: RankGroup = ALONE
    ) -> None:
        """`group`: the ranks that hold a part of each key and value, in the same slots."""
        super().__init__(shape, replace(plan, tokens=plan.tokens + plan.block_size), dtype, device, paged=True)
        self._group = group
        self._moves: list[tuple[int, int]] = []
        # Blocks [rows + 1, n] of each row, the last one being `_NO_ROW`; those that a row does not hold are old ones.
        self.table: IntArray = np.zeros((plan.rows + 1, -(-plan.context // plan.block_size)), dtype=np.int64)
        self.reserve(_NO_ROW, 1)
        self.padding_slot = int(self.slots(_NO_ROW, 0, 1)[0])

    @property
    def free_share(self) -> float:
        return len(self._free) / (self.blocks - 1)

    def share_of(self, rows: Collection[int]) -> float:
        return super().share_of(rows) * self.blocks / (self.blocks - 1)

    def _hold(self, row: int, block: int) -> None:
        super()._hold(row, block)
        self.table[row, len(self._held[row]) - 1] = block

    def move(self, pairs: Sequence[tuple[int, int]]) -> None:
        targets = {target for _, target in self._moves}
        if any(source in targets or target in targets for source, target in pairs):
            self.flush()  # moves of one flush all read before one writes
        self._moves += pairs

    def flush(self) -> None:
        """Move what was collected. Call it before a pass, which may write to slots that are read here."""
        if self._moves:
            with self._group.together("call", "move", self._moves):
                self.move_now(self._moves)
            self._moves = []

    def move_now(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Move tokens on this rank."""
        slots = to_device(np.array(pairs, dtype=np.int64).T, self._pool.device)
        self._pool.index_copy_(1, slots[1], self._pool.index_select(1, slots[0]))


class PassBuffer:
    """The small arrays of a pass in one block of memory, which is uploaded in one copy."""

    def __init__(self, width: int, num_lists: int, device: torch.device) -> None:
        """For up to `width` tokens and `num_lists` values of `AttentionPlan.lists`."""
        self.width, self._device = width, device
        self._offsets, offset = dict[str, int](), _HEADER
        for name, (dtype, values) in _FIELDS.items():
            self._offsets[name] = offset
            offset += -(-width * values * dtype.itemsize // 16) * 16
        self._lists_offset = offset
        self.memory = torch.zeros(offset + 4 * num_lists, dtype=torch.uint8, device=device)

    def used(self, num_lists: int) -> int:
        """Bytes of a pass with so many values of `lists`."""
        return self._lists_offset + 4 * num_lists

    def upload(self, work: WorkLists, fields: Mapping[str, IntArray], width: int, padding_slot: int) -> None:
        """Copy the arrays to the device, each padded to `width` tokens, whose keys go to `padding_slot`."""
        host = host_memory(self.used(len(work.lists)), self._device)
        host[:4].view(torch.int32).numpy()[:] = work.num_items
        host[self._lists_offset :].view(torch.int32).numpy()[:] = work.lists
        for name, array in fields.items():
            line = self._view(host, name, width).numpy()
            line[: len(array)] = array
            line[len(array) :] = padding_slot if name == "slots" else _PADDING.get(name, 0)
        self.memory[: len(host)].copy_(host, non_blocking=True)

    def field(self, name: str, width: int) -> torch.Tensor:
        """The first `width` values of an array on the device."""
        return self._view(self.memory, name, width)

    @property
    def lists(self) -> torch.Tensor:
        return self.memory[self._lists_offset :].view(torch.int32)

    @property
    def num_items(self) -> torch.Tensor:
        return self.memory[:4].view(torch.int32)

    def _view(self, memory: torch.Tensor, name: str, width: int) -> torch.Tensor:
        dtype, values = _FIELDS[name]
        offset = self._offsets[name]
        array = memory[offset : offset + width * values * dtype.itemsize].view(dtype)
        return array if values == 1 else array.view(width, values)


class PassShape(NamedTuple):
    """The sizes of a pass, which all ranks must know.

    `num_logits`: tokens of the LM head, 0: none. `is_fixed`: its arrays lie where captured graphs read them.
    """

    width: int
    num_logits: int
    num_lists: int
    is_fixed: bool


class ProductSizes(NamedTuple):
    """Numbers of tokens that matrix products run with, ascending; more are computed in parts of the last."""

    sizes: tuple[int, ...]

    @property
    def most(self) -> int:
        return self.sizes[-1]

    def padded(self, tokens: int) -> int:
        """The width of a pass of so many tokens, at least one."""
        whole, rest = divmod(max(tokens, 1), self.most)
        return whole * self.most + next(size for size in (0, *self.sizes) if size >= rest)

    def up_to(self, tokens: int) -> list[int]:
        """All widths of passes of up to so many tokens, the largest first."""
        return sorted({self.padded(count) for count in range(1, tokens + 1)}, reverse=True)

    def product(self, product: Linear, x: torch.Tensor) -> torch.Tensor:
        """`product` of `x` [T, in], where T is a width."""
        if len(x) <= self.most:
            return product(x)
        result = x.new_empty((len(x), product.width))
        for part, out in zip(torch.split(x, self.most), torch.split(result, self.most), strict=True):
            product(part, out)
        return result


FIXED = ProductSizes((TILE,))
VARIABLE = ProductSizes(WIDTHS)


Product = Callable[[torch.Tensor], torch.Tensor]


def rows_are_invariant(product: Product, inputs: int, sizes: Sequence[int], like: torch.Tensor) -> bool:
    """Whether the rows of a product have the same bits in products of all these sizes, and at any index in them.

    NVIDIA promises nothing of the kind, so it is tried. `inputs` are the values per token, `like` has their dtype and
    device.
    """
    generator = torch.Generator(like.device).manual_seed(0)
    x = torch.randn(max(sizes), inputs, generator=generator, device=like.device).to(like.dtype)
    expected = product(x)
    order = torch.randperm(len(x), generator=generator, device=like.device)
    if not torch.equal(product(x[order]), expected[order]):
        return False
    return all(torch.equal(product(x[:size]), expected[:size]) for size in sizes)


@contextmanager
def products_of_equal_rows(device: torch.device) -> Iterator[None]:
    """Run matrix products by cuBLASLt without split sums, and add in float32.

    On an H200 the rows of a product then had the same bits in products of 2 to 4,096 tokens (bench/RESULTS.md).
    The settings are the process's, and products of a small draft model are slower with them, so they end here. A
    captured graph keeps the kernels that were chosen.
    """
    if device.type != "cuda":
        yield
        return
    products = torch.backends.cuda.matmul
    library, tf32 = torch.backends.cuda.preferred_blas_library(), products.allow_tf32
    sums = {name: (getattr(products, name), getattr(products, f"{name}_split_k", True)) for name in _SUMS}
    try:
        torch.backends.cuda.preferred_blas_library("cublaslt")
        products.allow_tf32 = False
        for name in sums:
            _set_sums(name, rounded=False, split=False)
        yield
    finally:
        torch.backends.cuda.preferred_blas_library(library)
        products.allow_tf32 = tf32
        for name, (rounded, split) in sums.items():
            _set_sums(name, rounded=rounded, split=split)


def _set_sums(name: str, *, rounded: bool, split: bool) -> None:
    """Whether parts of a sum may be rounded to 16 bits, and whether there may be parts (from torch 2.10 on)."""
    has_split = hasattr(torch.backends.cuda.matmul, f"{name}_split_k")
    setattr(torch.backends.cuda.matmul, name, (rounded, split) if has_split else rounded)


class Passes:
    """Lays out the passes of one model over its cache, and gives what its layers share.

    After `allocate`, passes of up to that width use memory at fixed addresses, which captured graphs read.
    """

    def __init__(
        self, config: DecoderConfig, cache: PagedCache, operators: ModuleType, sizes: ProductSizes, group: RankGroup
    ) -> None:
        self.cache, self.operators, self.sizes = cache, operators, sizes
        self.device = cache.pool[0].device
        self._heads, self._group = Heads(config.heads, config.kv_heads, config.head_dim), group
        table = rotations(config.rope, config.head_dim, cache.context).to(self.device)
        self._rotation = table.real.contiguous(), table.imag.contiguous()
        self._workspace, self._programs = None, 1
        if self.device.type == "cuda":
            processors = torch.cuda.get_device_properties(self.device).multi_processor_count
            # Two programs per processor keep its memory busy while one of them starts or ends.
            self._programs = -(-2 * processors // config.kv_heads)
            tokens = workspace_tokens(self._heads, cache.context)
            self._workspace = Workspace.of(tokens, self._heads, cache.context, self.device)
        self._fixed: PassBuffer | None = None
        self.buffer: PassBuffer  # of the latest pass

    @property
    def fixed_width(self) -> int:
        """The widest pass that uses memory at fixed addresses."""
        return 0 if self._fixed is None else self._fixed.width

    def allocate(self, width: int) -> None:
        """Use memory at fixed addresses for passes of up to `width` tokens."""
        self._fixed = PassBuffer(width, 2 * width * num_splits(self.cache.context) + self.cache.table.size, self.device)

    def lay_out(self, tokens: IntArray, spans: Sequence[Span], wanted: IntArray) -> PassShape:
        """Upload the arrays of a pass over new tokens of rows; `wanted` are indices of those that get logits."""
        rows, starts, ends = np.array([span[:3] for span in spans], dtype=np.int64).T
        counts, size, table = ends - starts, self.cache.block_size, self.cache.table
        owner = np.arange(len(spans)).repeat(counts)
        first = counts.cumsum() - counts
        cached = np.arange(len(tokens)) + (starts - first).repeat(counts)  # index in the row
        position, base, seen = cached, cached, np.zeros(len(tokens), dtype=np.int64)
        if any(span.seen is not None for span in spans):
            position, base = positions(spans), cached.copy()
            for span, begin in zip(spans, first.tolist(), strict=True):
                if span.seen is not None:
                    new = slice(begin, begin + span.size)
                    base[new], seen[new] = tree_bits(span)
        work = work_lists(starts, counts, table[rows, : -(-int(ends.max()) // size)], self._heads, size)
        fields = {
            "tokens": tokens,
            "seen": seen,
            "slots": table[rows[owner], cached // size] * size + cached % size,
            "wanted": wanted,
            "positions": position,
            "base": base,
            "tiles": work.tiles,
        }
        width = self.sizes.padded(len(tokens))
        num_logits = self.sizes.padded(len(wanted)) if len(wanted) else 0
        shape = PassShape(width, num_logits, len(work.lists), width <= self.fixed_width)
        self.use_buffer(shape)
        self.buffer.upload(work, fields, width, self.cache.padding_slot)
        return shape

    def lay_out_padding(self, width: int) -> None:
        """Upload a pass of `width` tokens that are all padding, for a graph to be captured."""
        empty = np.zeros(0, dtype=np.int64)
        self.use_buffer(PassShape(width, width, 0, is_fixed=True))
        fields = {name: empty for name in _FIELDS if name != "tiles"} | {"tiles": empty.reshape(0, 3)}
        self.buffer.upload(WorkLists(empty.reshape(0, 3), empty, 0), fields, width, self.cache.padding_slot)

    def use_buffer(self, shape: PassShape) -> None:
        """Have `buffer` be that of a pass of these sizes."""
        if shape.is_fixed:
            assert self._fixed is not None
            self.buffer = self._fixed
        else:
            self.buffer = PassBuffer(shape.width, shape.num_lists, self.device)

    def layers(self, width: int) -> LayerPass:
        """What the layers of the pass in `buffer` share."""
        field = partial(self.buffer.field, width=width)
        shared = self._workspace is not None and width <= len(self._workspace.peaks)
        plan = AttentionPlan(
            self._heads,
            self.cache.block_size,
            base=field("base"),
            seen=field("seen"),
            slots=field("slots"),
            positions=field("positions"),
            tiles=field("tiles"),
            lists=self.buffer.lists,
            num_items=self.buffer.num_items,
            workspace=self._workspace if shared else None,
            programs=self._programs,
        )
        return LayerPass(self.operators, plan, self._rotation, self.sizes, self._group)


class LayerPass:
    """What all layers of one pass share: who attends to what, where keys and values go, sizes of products."""

    def __init__(
        self,
        operators: ModuleType,
        plan: AttentionPlan,
        rotation: tuple[torch.Tensor, torch.Tensor],
        sizes: ProductSizes,
        group: RankGroup,
    ) -> None:
        """`rotation` are cosines and sines [context, head_dim / 2]."""
        self._operators, self._rotation, self._sizes, self._group = operators, rotation, sizes, group
        self._plan = plan
        self._plans: dict[int | None, AttentionPlan] = {None: plan}

    def layer(
        self, layer: LayerWeights, pool: torch.Tensor, window: int | None, normed: torch.Tensor, residual: torch.Tensor
    ) -> torch.Tensor:
        """Run a layer on `normed` [T, in]: changes `residual` [T, hidden], and returns what is to be added to it."""
        operators, plan, product = self._operators, self._plan, self._sizes.product
        norm = None if layer.qk_norm is None else HeadNorm(layer.qk_norm.weight, layer.qk_norm.eps)
        qkv = product(layer.qkv, normed)
        queries = operators.rope_store(qkv, *self._rotation, plan.positions, plan.slots, pool, norm)
        attended = operators.attend(queries, pool, self._with_window(window))
        added = self._group.ordered_sum(product(layer.output, attended))
        gate_up = product(layer.gate_up, self.norm(added, residual, layer.mlp_norm))
        return self._group.ordered_sum(product(layer.down, operators.silu_mul(gate_up)))

    def norm(self, added: torch.Tensor | None, residual: torch.Tensor, norm: RmsNorm) -> torch.Tensor:
        """Add `added` to `residual` [T, hidden] in place, and return its norm."""
        normed: torch.Tensor = self._operators.add_norm(added, residual, norm.weight, norm.eps)
        return normed

    def _with_window(self, window: int | None) -> AttentionPlan:
        if window not in self._plans:
            self._plans[window] = replace(self._plan, window=window)
        return self._plans[window]


def workspace_tokens(heads: Heads, context: int) -> int:
    """Width of the widest pass whose work items are shared by programs, in rows of up to `context` tokens."""
    return max(WIDTHS[2], min(HEAD_TOKENS, WORKSPACE_BYTES // Workspace.bytes(1, heads, context)))


def bytes_of_passes(config: DecoderConfig, context: int) -> int:
    """Bytes that `Passes` keep on a GPU in rows of up to `context` tokens: the workspace and the rotations."""
    heads = Heads(config.heads, config.kv_heads, config.head_dim)
    return Workspace.bytes(workspace_tokens(heads, context), heads, context) + 4 * context * heads.dim

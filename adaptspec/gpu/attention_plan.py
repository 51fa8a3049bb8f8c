"""Which cached tokens each token of a pass attends to, as tensors that the kernels and a captured graph can read.

Attention of a token is summed per split of `SPLIT` cached tokens. The sums of splits are added in ascending order to
the token's own term. So the order of summation, and with it the last bits, depend on the token's position alone, not on
the batch, the width of the pass, or the number of programs that share the work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from adaptspec.arrays import IntArray
from adaptspec.models.attention import Heads, Span

SPLIT = 512  # cached tokens of a split
BRANCH = 64  # positions from `base` on that a token may see one by one: the bits of `seen`


class HeadNorm(NamedTuple):
    """RMS norm of single heads: weights [heads + kv_heads, dim], of queries and then of keys."""

    weight: torch.Tensor
    eps: float


@dataclass(frozen=True)
class Workspace:
    """The sums of splits before they are merged, float32: `sums` [T, heads, splits, dim], `peaks` and `totals`.

    The last split of a token is its own term.
    """

    sums: torch.Tensor
    peaks: torch.Tensor  # [T, heads, splits]
    totals: torch.Tensor  # [T, heads, splits]

    @staticmethod
    def of(tokens: int, heads: Heads, context: int, device: torch.device) -> Workspace:
        """For passes of up to `tokens` tokens in rows of up to `context`. One serves all layers, one after another."""
        shape = tokens, heads.query, num_splits(context) + 1
        peaks, totals = torch.empty((2, *shape), dtype=torch.float32, device=device).unbind(0)
        return Workspace(torch.empty((*shape, heads.dim), dtype=torch.float32, device=device), peaks, totals)

    @staticmethod
    def bytes(tokens: int, heads: Heads, context: int) -> int:
        """Memory of `Workspace.of`."""
        return 4 * tokens * heads.query * (num_splits(context) + 1) * (heads.dim + 2)


@dataclass(frozen=True)
class AttentionPlan:
    """T packed tokens, and which cached tokens of its row each of them sees.

    Token t sees all cached tokens before `base[t]`, those of the 64 from there on whose bit is set in `seen[t]`, and
    itself, in slot `slots[t]`. For a token of a chain or of a prompt these are its position in the row and 0; for a
    node of a tree, the end of what all nodes see and the bits of its ancestors. Padding has -1 and 0, and results in 0.

    A token's own term is added by itself, so a node of a tree has the bits of a chain's token that sees the same.

    `tiles` [n, 3] are up to `tile_tokens` consecutive tokens of one row each: the first, how many (0: the tile is
    unused), and where in `lists` the blocks of the row begin. `lists` begins with `num_items` work items (tile, split),
    which programs share if there is a `workspace`. Without one, a program walks over all splits of a tile.
    """

    heads: Heads
    block_size: int  # tokens per block of the cache
    base: torch.Tensor  # int32 [T]
    seen: torch.Tensor  # int64 [T]
    slots: torch.Tensor  # int64 [T]
    positions: torch.Tensor  # int32 [T], of windows and rotations: of a tree's node the depth counts
    tiles: torch.Tensor  # int32 [n, 3]
    lists: torch.Tensor  # int32 [m]
    num_items: torch.Tensor  # int32 [1]
    window: int | None = None  # of the layer: a token sees positions > its own - window
    workspace: Workspace | None = None
    programs: int = 1  # that share the work items, per key-value head

    @property
    def scale(self) -> float:
        """Factor of the products of queries and keys."""
        return float(self.heads.dim**-0.5)


class WorkLists(NamedTuple):
    """`tiles` [n, 3] and `lists` [m] of an `AttentionPlan`, and the number of work items."""

    tiles: IntArray
    lists: IntArray
    num_items: int


def tile_lines(heads: Heads) -> int:
    """Queries of a tile, all heads of a group together: at least the 16 of a matrix unit.

    Eight tokens, so that a round of depth 7 reads a row's keys once, unless those are more queries than registers hold.
    """
    return max(16, _power(heads.group), min(64, _power(8 * heads.group)))


def tile_tokens(heads: Heads) -> int:
    """Most tokens of a tile."""
    return tile_lines(heads) // heads.group


def work_lists(starts: IntArray, counts: IntArray, blocks: IntArray, heads: Heads, block_size: int) -> WorkLists:
    """Lay out the new tokens of B rows, packed row after row: `counts` [B] tokens from positions `starts` [B] on.

    `blocks` [B, n] are the blocks of each row's cache; those beyond its tokens are ignored. A token sees only positions
    before its own in the row, so a tile needs the splits before its last token, and at least one, whose program
    also computes the tokens' own terms.
    """
    width = tile_tokens(heads)
    parts = -(-counts // width)
    owner = np.arange(len(counts)).repeat(parts)
    before = (np.arange(len(owner)) - (parts.cumsum() - parts).repeat(parts)) * width
    sizes = np.minimum(width, counts[owner] - before)
    splits = np.maximum(1, -(-(starts[owner] + before + sizes - 1) // SPLIT))
    items = np.arange(len(owner)).repeat(splits)
    split = np.arange(len(items)) - (splits.cumsum() - splits).repeat(splits)
    needed = -(-(starts + counts) // block_size)
    used = blocks[np.arange(blocks.shape[1]) < needed[:, None]]
    begins = 2 * len(items) + needed.cumsum() - needed
    first = (counts.cumsum() - counts)[owner] + before
    tiles = np.stack((first, sizes, begins[owner]), axis=1)
    lists = np.concatenate((np.stack((items, split), axis=1).ravel(), used))
    return WorkLists(tiles, lists, len(items))


def tree_bits(span: Span) -> tuple[IntArray, IntArray]:
    """`base` and `seen` [size] of the new tokens of a row that branches.

    What all of them see lies before `base`, so the bits suffice for a newest token and 64 nodes.
    """
    assert span.seen is not None
    common = int(np.logical_and.accumulate(span.seen.all(axis=0)).sum())
    others = span.seen.copy()
    others[np.arange(span.size), np.arange(-span.size, 0)] = False  # its own term
    rest = others[:, common:]
    packed = np.packbits(np.pad(rest, ((0, 0), (0, BRANCH - rest.shape[1]))), axis=1, bitorder="little")
    return np.minimum(span.end - rest.shape[1], np.arange(span.start, span.end)), packed.view(np.int64)[:, 0]


def num_splits(context: int) -> int:
    """Splits of a row of `context` tokens."""
    return -(-context // SPLIT)


def _power(number: int) -> int:
    """The next power of two."""
    return 1 << (number - 1).bit_length()

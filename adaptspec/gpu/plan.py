"""Who attends to what in one pass on a device: tensors of fixed shapes, so that a captured graph can be replayed.

The host writes them before every pass; a graph reads whatever they hold by then.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from adaptspec.arrays import IntArray
from adaptspec.models.attention import Heads

# Cached places whose sums are made on their own and then merged in order. It is the same for every batch and width, or
# the order of summation, and with it the last bits, would depend on them.
SPLIT = 512
BRANCH = 64  # places behind `base` that a token may see one by one: the bits of `seen`


@dataclass(frozen=True)
class Workspace:
    """What splits leave for the merge: `sums` [T, heads, splits, dim] and, for each, `peaks` and `totals`, float32.

    The last of them is the token's own place.
    """

    sums: torch.Tensor
    peaks: torch.Tensor  # [T, heads, splits]
    totals: torch.Tensor  # [T, heads, splits]

    @staticmethod
    def of(tokens: int, heads: Heads, places: int, device: torch.device) -> Workspace:
        """For passes of up to `tokens` tokens whose rows hold up to `places`. It can serve all layers, one by one."""
        shape = tokens, heads.query, _splits(places) + 1
        peaks, totals = torch.empty((2, *shape), dtype=torch.float32, device=device).unbind(0)
        return Workspace(torch.empty((*shape, heads.dim), dtype=torch.float32, device=device), peaks, totals)

    @staticmethod
    def bytes(tokens: int, heads: Heads, places: int) -> int:
        """What that takes."""
        return 4 * tokens * heads.query * (_splits(places) + 1) * (heads.dim + 2)


@dataclass(frozen=True)
class AttentionPlan:
    """T packed tokens, and which places of its row each of them sees.

    Token t sees all places before `base[t]`, of the 64 from there on those whose bit is set in `seen[t]`, and itself:
    slot `own[t]`. A token of a chain or a prompt: its own place, and 0. A node of a tree: the places up to and
    including the row's newest token, and the bits of its ancestors. Padding: -1 and 0; nothing comes of it.

    What a token has of itself is added by itself. So a node of a tree sums up what a token of a chain does that sees
    the same, wherever in the row it lies: they have the same bits.

    `tiles` are up to `tile_tokens` consecutive tokens of one row each: the first, how many, the row of `table`. Of a
    static number of them those that are not needed count 0.
    """

    heads: Heads
    block: int  # places per block of the cache
    tiles: torch.Tensor  # int32 [n, 3]
    base: torch.Tensor  # int32 [T]
    seen: torch.Tensor  # int64 [T]
    own: torch.Tensor  # int64 [T]
    positions: torch.Tensor  # int32 [T]
    table: torch.Tensor  # int32 [rows, blocks]: where the blocks of each row lie in the pool
    window: int | None = None  # of this layer: a token sees places > its position - window
    # Where the splits of a tile are shared by several programs. Without it one walks over all of them.
    workspace: Workspace | None = None
    programs: int = 1  # per tile and head of keys, with a workspace

    @property
    def scale(self) -> float:
        """Of products of queries and keys."""
        return float(self.heads.dim**-0.5)


def tile_lines(heads: Heads) -> int:
    """Queries attended at once, all heads of a group together: at least the 16 that tensor cores take.

    Eight tokens, so that a round of depth 7 reads a row's keys once, unless that are more lines than registers hold.
    """
    return max(16, _power(heads.group), min(64, _power(8 * heads.group)))


def tile_tokens(heads: Heads) -> int:
    """The most tokens of a tile."""
    return tile_lines(heads) // heads.group


def tiles(rows: IntArray, counts: IntArray, heads: Heads) -> IntArray:
    """Tiles [n, 3] of tokens packed row after row: `counts` [B] of them for each of `rows` [B] of the table."""
    width = tile_tokens(heads)
    parts = -(-counts // width)
    owner = np.repeat(np.arange(len(rows)), parts)
    before = (np.arange(len(owner)) - np.repeat(np.cumsum(parts) - parts, parts)) * width
    first = (np.cumsum(counts) - counts)[owner] + before
    return np.stack((first, np.minimum(width, counts[owner] - before), rows[owner]), axis=1)


def programs(tiles: int, heads: Heads, places: int, processors: int) -> int:
    """How many should share a tile's splits, for so many tiles of rows of up to `places`, on so many processors.

    Two per processor keep its memory busy while one of them starts or ends. With 1 no workspace is needed.
    """
    return min(-(-2 * processors // (tiles * heads.kv)), _splits(places))


def _splits(places: int) -> int:
    return -(-places // SPLIT)


def _power(number: int) -> int:
    """The next power of two."""
    return 1 << (number - 1).bit_length()

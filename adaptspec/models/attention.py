"""Who attends to what in one forward pass, and the one form of attention of the torch runners.

A token's sums must not depend on what else is in its pass. So the keys that a token is given, padded to whole blocks,
depend on its own position alone; tokens of one row whose keys are the same are computed together, in a number of
queries for which the libraries below have one order of sums. Tokens of a branch find the keys of their own path at the
places at which they would lie if there was no other branch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from adaptspec.arrays import BoolArray, IntArray
from adaptspec.models.kv_cache import BLOCK, KVCache
from adaptspec.models.runner import Packed

# Queries of one product are a multiple of these: with 1 to 3 of them, libraries add in another order.
QUERIES = 4


@dataclass(frozen=True)
class Heads:
    """How many query and key-value heads there are, and their dimension."""

    query: int
    kv: int
    dim: int

    @property
    def group(self) -> int:
        return self.query // self.kv


class Span(NamedTuple):
    """The new tokens of one row, at its places `start` to `end` (exclusive).

    A place is the position too, but in rows that branch: there `seen` [size, n] says which of the row's last n tokens
    each new one sees, itself among them, beside all that come before these (see `Packed`).
    """

    row: int
    start: int
    end: int
    seen: BoolArray | None = None

    @property
    def size(self) -> int:
        return self.end - self.start

    @property
    def positions(self) -> IntArray:
        """Of the new tokens [size]."""
        if self.seen is None:
            return np.arange(self.start, self.end)
        return np.asarray(self.end - self.seen.shape[1] - 1 + self.seen.sum(axis=1))

    def visible(self, first: int, window: int | None) -> BoolArray:
        """Which of the row's places from `first` on each new token sees [size, end - first], by position."""
        if self.seen is not None and window is None:
            every: BoolArray = np.ones((self.size, self.end - first), dtype=np.bool_)
            every[:, -self.seen.shape[1] :] = self.seen[:, -every.shape[1] :]
            return every
        asking, places = self.positions[:, None], np.arange(self.end)[None]
        if self.seen is None:
            visible = places <= asking
        else:
            trunk = self.end - self.seen.shape[1]
            # What a token sees is its path, one position after the other.
            branch = trunk - 1 + np.cumsum(self.seen, axis=1)
            places = np.hstack([np.broadcast_to(places[:, :trunk], (self.size, trunk)), branch])
            visible = np.hstack([np.ones((self.size, trunk), dtype=np.bool_), self.seen])
        if window is not None:
            visible = visible & (places > asking - window)
        return visible[:, first:]


def new_spans(cache: KVCache, packed: Packed) -> list[Span]:
    """Where the new tokens of each row go, with room made for them."""
    rows = zip(packed.rows.tolist(), packed.counts.tolist(), packed.seen or [None] * len(packed.rows), strict=True)
    spans = [Span(row, start := cache.length(row), start + count, own) for row, count, own in rows]
    for span in spans:
        cache.require(span.row, span.end)
    return spans


def positions(spans: Sequence[Span]) -> IntArray:
    """Of all new tokens in their rows [N]."""
    return np.concatenate([span.positions for span in spans])


def last_indices(spans: Sequence[Span], wanted: Sequence[int]) -> IntArray:
    """Where among all new tokens the last `wanted` of each row are."""
    ends = np.cumsum([span.size for span in spans]).tolist()
    return np.concatenate([np.arange(end - n, end) for end, n in zip(ends, wanted, strict=True)])


def additive(visible: BoolArray, group: int) -> torch.Tensor:
    """[group * width, length] of 0 and -inf: `visible` [width, length] as attention adds it."""
    hidden = np.where(visible, np.float32(0), np.float32(-np.inf))
    return torch.from_numpy(hidden if group == 1 else np.tile(hidden, (group, 1)))


def fold(queries: torch.Tensor, heads: Heads) -> torch.Tensor:
    """[B, n, heads * dim] to [B, kv, group * n, dim]."""
    batch, count = queries.shape[:2]
    grouped = queries.view(batch, count, heads.kv, heads.group, heads.dim).permute(0, 2, 3, 1, 4)
    return grouped.reshape(batch, heads.kv, heads.group * count, heads.dim)


def unfold(out: torch.Tensor, heads: Heads) -> torch.Tensor:
    """[B, kv, group * n, dim] to [B, n, heads * dim]."""
    batch, count = out.shape[0], out.shape[2] // heads.group
    grouped = out.view(batch, heads.kv, heads.group, count, heads.dim).permute(0, 3, 1, 2, 4)
    return grouped.reshape(batch, count, heads.query * heads.dim)


class Attention:
    """Of one forward pass over rows of a cache, for layers with the same `window` (tokens including the token itself).

    A call attends with queries [N, heads * dim] over a layer whose new keys and values are cached; the same shape comes
    back.
    """

    def __init__(
        self, cache: KVCache, heads: Heads, spans: Sequence[Span], window: int | None, like: torch.Tensor
    ) -> None:
        self._cache, self._heads, self._window, self._like = cache, heads, window, like
        self._parts: list[_Chain | _Tree] = []
        first = 0
        for span in spans:
            cache.clear_beyond(span.row, _whole_blocks(span.end))
            tokens = np.arange(first, first + span.size)
            if span.seen is None:
                self._parts.append(self._chain(span.row, (tokens, span.positions)))
            else:
                self._parts.append(self._tree(span, tokens))
            first += span.size

    def __call__(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        parts = [part(layer, queries) for part in self._parts]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _chain(self, row: int, tokens: tuple[IntArray, IntArray]) -> _Chain:
        """`tokens`: where they are in the pass, and their positions; both [n], and ascending."""
        cache, heads, window, like = self._cache, self._heads, self._window, self._like

        def keys(position: int) -> tuple[int, int]:
            first = 0 if window is None else max(0, position - window + 1)
            return first // BLOCK * BLOCK, _whole_blocks(position + 1)

        runs, at, written = [], 0, int(tokens[1][-1]) + 1
        for (first, end), group in groupby(tokens[1].tolist(), keys):
            own = np.array(list(group))
            places = tokens[0][at : at + len(own)]
            at += len(own)
            consecutive = int(places[-1]) - int(places[0]) == len(places) - 1
            chosen: slice | torch.Tensor = slice(int(places[0]), int(places[-1]) + 1)
            if not consecutive:
                chosen = torch.from_numpy(places).to(like.device)
            queries, cached = own[:, None], np.arange(first, end)
            visible = cached <= queries
            if window is not None:
                visible &= cached > queries - window
            padding = -len(own) * heads.group % QUERIES
            mask = F.pad(additive(visible, heads.group), (0, 0, 0, padding))[None, None]
            read = cache.reader(row, first, end, written=min(end, written))
            runs.append(_Run(heads, chosen, read, mask.to(like.device, like.dtype), padding))
        return _Chain(runs)

    def _tree(self, span: Span, tokens: IntArray) -> _Tree:
        assert span.seen is not None
        cache, like = self._cache, self._like
        count = span.seen.shape[1]
        trunk, before = span.end - count, count - span.size  # where the last `count` tokens begin; those not new
        paths = []
        for path, new in paths_of(span.seen):
            at = trunk + len(path) - len(new) + np.arange(len(new))  # positions, at the end of the path
            chain = self._chain(span.row, (tokens[new - before], at))
            paths.append((_sent(path, like), _sent(new - before, like), chain))
        slots = _sent(cache.slots(span.row, trunk, span.end), like)
        return _Tree(cache, slots, paths, span.size)


class _Run(NamedTuple):
    """Tokens of a row that are given the same keys."""

    heads: Heads
    tokens: slice | torch.Tensor  # of the packed ones
    read: Callable[[int], tuple[torch.Tensor, torch.Tensor]]  # keys and values of a layer [1, kv, keys, dim]
    mask: torch.Tensor  # [1, 1, queries, keys]: 0 or -inf
    padding: int  # queries at the end that belong to no token

    def __call__(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        keys, values = self.read(layer)
        folded = fold(queries[self.tokens].unsqueeze(0), self.heads)
        if not self.padding:
            out = F.scaled_dot_product_attention(folded, keys, values, attn_mask=self.mask)
        else:
            folded = F.pad(folded, (0, 0, 0, self.padding))
            out = F.scaled_dot_product_attention(folded, keys, values, attn_mask=self.mask)[:, :, : -self.padding]
        return unfold(out, self.heads)[0]


class _Chain(NamedTuple):
    """Tokens of a row, one after another."""

    runs: Sequence[_Run]

    def __call__(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        parts = [run(layer, queries) for run in self.runs]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


class _Tree(NamedTuple):
    """Tokens of a row that branch: each path in turn has its keys and values at their places.

    Of each path: which of the row's last n tokens are on it, which new tokens it is computed for, and their runs.
    """

    cache: KVCache
    slots: torch.Tensor  # of the row's last tokens [n]
    paths: Sequence[tuple[torch.Tensor, torch.Tensor, _Chain]]
    size: int  # new tokens

    def __call__(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        pool = self.cache.pool[layer]
        own = pool.index_select(0, self.slots)
        result = queries.new_empty(self.size, queries.shape[1])
        for path, tokens, chain in self.paths:
            pool.index_copy_(0, self.slots[: len(path)], own.index_select(0, path))
            result.index_copy_(0, tokens, chain(layer, queries))
        pool.index_copy_(0, self.slots, own)
        return result


def _whole_blocks(places: int) -> int:
    return -(-places // BLOCK) * BLOCK


def paths_of(seen: BoolArray) -> list[tuple[IntArray, IntArray]]:
    """The paths of a tree of n tokens, of which the last `size` are new, and which new tokens end on each.

    `seen` [size, n] as in `Packed`. Every new token is on one of the paths, and counted on the first such.
    """
    size, count = seen.shape
    lines = [np.flatnonzero(line) for line in seen]
    parents = {int(line[-2]) for line in lines if len(line) > 1}
    paths, done = [], set[int]()
    for i, line in enumerate(lines):
        if count - size + i not in parents:  # a leaf
            new = np.array([token for token in line.tolist() if token >= count - size and token not in done])
            done.update(new.tolist())
            paths.append((line, new))
    return paths


def _sent(numbers: IntArray, like: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(numbers)).to(like.device)

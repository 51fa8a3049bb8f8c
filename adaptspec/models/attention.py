"""Who attends to what in one forward pass: rows and their new tokens, masks, and how heads are laid out.

`GatheredAttention` collects scattered blocks, for paged caches and for CUDA; `in_place_attention` copies nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from adaptspec.models.kv_cache import KVCache
from adaptspec.models.runner import Packed
from adaptspec.types import BoolArray, IntArray


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


def last_places(spans: Sequence[Span], wanted: Sequence[int]) -> IntArray:
    """Where among all new tokens the last `wanted` of each row are."""
    ends = np.cumsum([span.size for span in spans]).tolist()
    return np.concatenate([np.arange(end - n, end) for end, n in zip(ends, wanted, strict=True)])


@dataclass(frozen=True)
class AttentionMetadata:
    """Who attends in one forward pass, and how far back: `window` tokens including itself, None for all.

    `groups` says which of the spans may attend together where rows lie in place (see `group_rows`).
    """

    heads: Heads
    spans: Sequence[Span]
    window: int | None
    groups: Sequence[Sequence[int]] | None = None

    def first(self, span: Span) -> int:
        """The oldest position that any new token may see: nothing before it is read.

        Nor is anything before that place: none lies at a place before its position.
        """
        return 0 if self.window is None else max(0, int(span.positions.min()) - self.window + 1)


Attention = Callable[[int, torch.Tensor], torch.Tensor]
"""Of one forward pass: attends with queries [N, heads * dim] over the cache of a layer; same shape comes back."""


def causal_mask(width: int, length: int, group: int, window: int | None = None) -> torch.Tensor:
    """[group * width, length] of 0 and -inf: each of the last `width` of `length` positions sees none after it.

    With a `window` it sees only that many, itself included.
    """
    hidden = torch.full((width, length), -torch.inf)
    mask = hidden.triu(length - width + 1)
    if window is not None:
        mask += hidden.tril(length - width - window)
    return mask.repeat(group, 1)


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


class GatheredAttention:
    """Rows in groups of like size: each group's keys and values are gathered, padded, and attended at once."""

    def __init__(self, cache: KVCache, meta: AttentionMetadata, like: torch.Tensor) -> None:
        self._cache = cache
        self._heads = meta.heads
        offsets = np.cumsum([0, *(span.size for span in meta.spans)])
        alike: dict[int, list[int]] = {}
        for i, span in enumerate(meta.spans):
            alike.setdefault(span.size.bit_length(), []).append(i)
        self._groups = [_Group.of(cache, meta, members, offsets[members], like) for members in alike.values()]

    def __call__(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        result = torch.empty_like(queries, memory_format=torch.contiguous_format)
        for group in self._groups:
            batch, width, length = group.shape
            cached = self._cache.pool[layer].index_select(0, group.slots)
            keys, values = cached.view(batch, length, 2, self._heads.kv, self._heads.dim).permute(2, 0, 3, 1, 4)
            folded = fold(queries.index_select(0, group.queries).view(batch, width, -1), self._heads)
            out = F.scaled_dot_product_attention(folded, keys, values, attn_mask=group.mask)
            flat = unfold(out, self._heads).reshape(batch * width, -1)
            result.index_copy_(0, group.tokens, flat.index_select(0, group.picked))
        return result


@dataclass(frozen=True)
class _Group:
    """Rows attended together, padded to `shape` = (rows, new tokens, cached tokens)."""

    shape: tuple[int, int, int]
    slots: torch.Tensor  # [rows * cached]
    queries: torch.Tensor  # [rows * new] packed token of each padded position
    tokens: torch.Tensor  # packed tokens of this group
    picked: torch.Tensor  # padded position of each of `tokens`
    mask: torch.Tensor  # [rows, 1, group * new, cached], 0 or -inf

    @staticmethod
    def of(
        cache: KVCache, meta: AttentionMetadata, members: Sequence[int], offsets: IntArray, like: torch.Tensor
    ) -> _Group:
        """Lay out the padded batch. Padding repeats a real query and a real slot, so it is finite and harmless."""
        spans = [meta.spans[i] for i in members]
        starts = np.array([span.start for span in spans])[:, None]
        firsts = np.array([meta.first(span) for span in spans])[:, None]
        ends = np.array([span.end for span in spans])[:, None]
        width, length = int((ends - starts).max()), int((ends - firsts).max())
        owned = [cache.slots(span.row, meta.first(span), span.end) for span in spans]
        slots = [np.pad(own, (0, length - len(own)), mode="edge") for own in owned]
        asking = np.minimum(starts + np.arange(width), ends - 1)  # place of each padded query
        queries = asking - starts + offsets[:, None]
        real = starts + np.arange(width) < ends
        seen = firsts[:, None] + np.arange(length) <= asking[:, :, None]
        if meta.window is not None:
            seen &= firsts[:, None] + np.arange(length) > asking[:, :, None] - meta.window
        for mine, span in zip(seen, spans, strict=True):
            if span.seen is not None:
                visible = span.visible(meta.first(span), meta.window)
                mine[:] = False
                mine[: span.size, : visible.shape[1]] = visible
                mine[span.size :] = mine[span.size - 1]
        mask = np.where(np.tile(seen, (1, meta.heads.group, 1)), np.float32(0), np.float32(-np.inf))[:, None]
        return _Group(
            (len(spans), width, length),
            _tensor(np.concatenate(slots), like.device),
            _tensor(queries.ravel(), like.device),
            _tensor(queries[real], like.device),
            _tensor(np.flatnonzero(real), like.device),
            torch.from_numpy(mask).to(like.device, like.dtype),
        )


def _tensor(values: IntArray, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).to(device)

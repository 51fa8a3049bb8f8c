"""Attention of packed tokens over cached rows, planned once per forward pass and run once per layer.

`InPlaceAttention` reads keys and values where they lie, rows that are neighbours at once: nothing is copied.
`GatheredAttention` collects scattered blocks and batches rows, for paged caches and for CUDA.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from adaptspec.models.kv_cache import KVCache
from adaptspec.types import BoolArray, IntArray

# What a call of attention takes beside its work, in tokens; and what it takes to read a token, in queries that see it.
CALL, READ = 64, 4


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


def make_attention(cache: KVCache, meta: AttentionMetadata, like: torch.Tensor) -> Attention:
    """The faster kind for this cache and device; `like` tells dtype and device."""
    kind = InPlaceAttention if cache.in_place and like.device.type == "cpu" else GatheredAttention
    return kind(cache, meta, like)


class InPlaceAttention:
    """Over views of the cache: nothing is copied. Heads that share keys are folded into the query dimension."""

    def __init__(self, cache: KVCache, meta: AttentionMetadata, like: torch.Tensor) -> None:
        self._heads = meta.heads
        groups = [[i] for i in range(len(meta.spans))] if meta.window or meta.groups is None else meta.groups
        firsts = np.cumsum([0, *(span.size for span in meta.spans)])
        tokens = [np.arange(firsts[i], firsts[i + 1]) for i in range(len(meta.spans))]
        self._parts: list[tuple[slice | None, _RowView | _Blocks]] = []
        for group in groups:
            if len(group) == 1:
                span = meta.spans[group[0]]
                own = slice(int(firsts[group[0]]), int(firsts[group[0] + 1]))
                self._parts.append((own, _RowView.of(cache, meta, span, like)))
            else:
                spans, packed = [meta.spans[i] for i in group], [tokens[i] for i in group]
                self._parts.append((None, _Blocks.of(cache, meta.heads, spans, packed, like)))
        order = np.concatenate([tokens[i] for group in groups for i in group])
        self._order = None if (order[1:] > order[:-1]).all() else torch.from_numpy(np.argsort(order))

    def __call__(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        parts = [self._attend(part, layer, queries if own is None else queries[own]) for own, part in self._parts]
        together = parts[0] if len(parts) == 1 else torch.cat(parts)
        return together if self._order is None else together.index_select(0, self._order)

    def _attend(self, part: _RowView | _Blocks, layer: int, queries: torch.Tensor) -> torch.Tensor:
        keys, values, heads = part.keys[layer], part.values[layer], self._heads
        if isinstance(part, _RowView):
            folded = fold(queries.unsqueeze(0), heads)
            out = F.scaled_dot_product_attention(folded, keys, values, attn_mask=part.mask, is_causal=part.causal)
            return unfold(out, heads).squeeze(0)
        taken = queries if part.queries is None else queries.index_select(0, part.queries)
        folded = fold(taken.unflatten(0, (keys.shape[0], -1)), heads)
        out = unfold(F.scaled_dot_product_attention(folded, keys, values, attn_mask=part.mask), heads)
        flat = out.flatten(0, 1)
        return flat if part.picked is None else flat.index_select(0, part.picked)


class _Blocks(NamedTuple):
    """Rows attended at once: the blocks from their lowest to their highest, as if there were a row in each.

    What the view has beyond a row's end, or in blocks of others, is masked or thrown away; but it is read (see
    `KVCache.clear`). Keys and values are [blocks, kv, longest, dim] per layer.
    """

    keys: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]
    mask: torch.Tensor  # [blocks, 1, group * widest or 1, longest], 0 or -inf
    queries: torch.Tensor | None  # [blocks * widest] packed token of each query; None: all as they are
    picked: torch.Tensor | None  # which of these are the rows' own, in their order; None: all

    @staticmethod
    def of(
        cache: KVCache, heads: Heads, spans: Sequence[Span], tokens: Sequence[IntArray], like: torch.Tensor
    ) -> _Blocks:
        """`tokens` are the packed tokens of each span. Queries beside them repeat the first one."""
        blocks = np.array([cache.held(span.row)[0] for span in spans])
        low, count = int(blocks.min()), int(np.ptp(blocks)) + 1
        widest, longest = max(span.size for span in spans), max(span.end for span in spans)
        places, ends = blocks - low, np.array([span.end for span in spans])
        queries = np.full((count, widest), tokens[0][0])
        if widest == 1 and all(span.seen is None for span in spans):
            last = np.ones(count, dtype=np.int64)
            last[places], queries[places, 0] = ends, np.concatenate(tokens)
            visible, kept = (np.arange(longest) < last[:, None])[:, None], places
        else:
            visible = np.zeros((count, widest, longest), dtype=np.bool_)
            visible[:, :, 0] = True
            for place, span, own in zip(places, spans, tokens, strict=True):
                queries[place, : span.size] = own
                visible[place, : span.size, : span.end] = span.visible(0, None)
            kept = np.concatenate(
                [place * widest + np.arange(len(own)) for place, own in zip(places, tokens, strict=True)]
            )
        mask = np.where(visible, np.float32(0), np.float32(-np.inf))[:, None]
        if widest > 1:
            mask = np.tile(mask, (1, 1, heads.group, 1))
        flat = queries.ravel()
        return _Blocks(
            *cache.view(low * cache.block_size, count, longest),
            torch.from_numpy(mask).to(like.dtype),
            None if _counts_up(flat, like.shape[0]) else torch.from_numpy(flat),
            None if _counts_up(kept, flat.size) else torch.from_numpy(kept),
        )


def _counts_up(numbers: IntArray, end: int) -> bool:
    """Whether they are 0, 1, 2 ... end - 1."""
    return len(numbers) == end and bool((numbers == np.arange(end)).all())


def group_rows(cache: KVCache, spans: Sequence[Span], wanted: Sequence[int]) -> list[list[int]]:
    """Which rows attend together, by their places in `spans`: neighbours in the cache, if it reads less than it saves.

    Rows of which no logits are wanted attend alone: nobody would see what they might read by mistake.
    """
    groups: list[list[int]] = []
    open_group, low, widest, longest, alone = False, 0, 0, 0, 0
    for i in sorted(range(len(spans)), key=lambda i: cache.first_slot(spans[i].row)):
        span, block = spans[i], cache.held(spans[i].row)[0]
        size, end = span.size, span.end
        worth = (size + READ) * (end + CALL)
        if open_group and wanted[i]:
            together = (block - low + 1) * (max(widest, size) + READ) * max(longest, end)
            if together <= alone + worth:
                groups[-1].append(i)
                widest, longest, alone = max(widest, size), max(longest, end), alone + worth
                continue
        groups.append([i])
        open_group, low, widest, longest, alone = bool(wanted[i]), block, size, end, worth
    return groups


class _RowView(NamedTuple):
    """What one row attends to: per layer keys and values [1, kv, cached, dim], and which of them are hidden."""

    keys: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]
    mask: torch.Tensor | None
    causal: bool

    @staticmethod
    def of(cache: KVCache, meta: AttentionMetadata, span: Span, like: torch.Tensor) -> _RowView:
        """A single token sees all of its view, and a prompt from the start needs no mask but `causal`."""
        if span.seen is not None:
            return _RowView.of_branches(cache, meta, span, like)
        first, window = meta.first(span), meta.window
        keys, values = cache.views(span.row, first, span.end)
        whole = window is None or span.end <= window  # every new token sees all before it
        causal = span.size > 1 and span.start == 0 and meta.heads.group == 1 and whole
        if causal or span.size == 1:
            return _RowView(keys, values, None, causal)
        mask = causal_mask(span.size, span.end - first, meta.heads.group, None if whole else window)
        return _RowView(keys, values, mask.to(like), causal)

    @staticmethod
    def of_branches(cache: KVCache, meta: AttentionMetadata, span: Span, like: torch.Tensor) -> _RowView:
        first = meta.first(span)
        mask = additive(span.visible(first, meta.window), meta.heads.group)
        return _RowView(*cache.views(span.row, first, span.end), mask.to(like), causal=False)


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
    return torch.from_numpy(np.tile(hidden, (group, 1)))


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

"""Attention over keys and values where they lie, for caches in which a row is one block: nothing is copied.

Rows that are neighbours attend at once: they are equally spaced, so one view with a mask covers them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from adaptspec.models.attention import AttentionMetadata, Heads, Span, additive, causal_mask, fold, unfold
from adaptspec.models.kv_cache import KVCache
from adaptspec.types import IntArray

# What a call of attention takes beside its work, in tokens; and what it takes to read a token, in queries that see it.
CALL, READ = 32, 4


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
        folded = fold(taken.view(keys.shape[0], -1, taken.shape[1]), heads)
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

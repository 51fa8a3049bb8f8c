"""Attention over gathered keys and values, for paged caches and for CUDA: scattered blocks are collected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from adaptspec.models.attention import AttentionMetadata, fold, unfold
from adaptspec.models.kv_cache import KVCache
from adaptspec.types import IntArray


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

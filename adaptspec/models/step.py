"""What one forward pass settles once, so that its layers need not: rotations, cache slots, attention, wanted rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from adaptspec.models.attention import (
    Attention,
    GatheredAttention,
    Heads,
    InPlaceAttention,
    Sight,
    Span,
    last_places,
    positions,
)
from adaptspec.models.config import DecoderConfig
from adaptspec.models.kv_cache import KVCache
from adaptspec.models.layers import Norm


class Step:
    """The plan of one forward pass over the new tokens in `spans`; `like` tells dtype and device."""

    def __init__(
        self, config: DecoderConfig, cache: KVCache, spans: Sequence[Span], table: torch.Tensor, like: torch.Tensor
    ) -> None:
        self._cache = cache
        self._spans = spans
        self._heads = Heads(config.heads, config.kv_heads, config.head_dim)
        self._queries = config.heads * config.head_dim
        self._slots: torch.Tensor | None = None
        self._targets: tuple[torch.Tensor, ...] = ()
        if len(spans) == 1 and cache.in_place:
            self._targets = cache.targets(*spans[0])
        else:
            self._slots = torch.from_numpy(np.concatenate([cache.slots(*span) for span in spans])).to(like.device)
        self._rotations = _rotations(table, spans)
        kind = InPlaceAttention if cache.in_place and like.device.type == "cpu" else GatheredAttention
        plans: dict[int | None, Attention] = {
            window: kind(cache, Sight(self._heads, spans, window), like) for window in set(config.windows)
        }
        self._attention = [plans[window] for window in config.windows]

    def attend(self, layer: int, qkv: torch.Tensor, qk_norm: Norm | None) -> torch.Tensor:
        """Normalise and rotate queries and keys in `qkv`, cache keys and values, attend: [N, heads * dim]."""
        if qk_norm is not None:
            heads = self._rotated(qkv)
            heads.copy_(qk_norm(heads))
        self._rotate(qkv)
        # Rotated keys and values lie side by side in `qkv` as they do in the cache: one copy stores both.
        cached = qkv[:, self._queries :]
        if self._slots is None:
            self._targets[layer].copy_(cached)
        else:
            self._cache.pool[layer].index_copy_(0, self._slots, cached)
        return self._attention[layer](layer, qkv[:, : self._queries])

    def pick(self, wanted: Sequence[int], *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Of each tensor [N, ...] the last `wanted` of every row's tokens."""
        if [span.size for span in self._spans] == wanted:
            return tensors
        picked = torch.from_numpy(last_places(self._spans, wanted)).to(tensors[0].device)
        return tuple(tensor.index_select(0, picked) for tensor in tensors)

    def _rotated(self, qkv: torch.Tensor) -> torch.Tensor:
        """The queries and keys in `qkv` as a view [N, heads + kv_heads, dim]."""
        heads, dim = self._heads.query + self._heads.kv, self._heads.dim
        return qkv.as_strided((len(qkv), heads, dim), (qkv.shape[1], dim, 1))

    def _rotate(self, qkv: torch.Tensor) -> None:
        queries_keys = self._rotated(qkv)
        if qkv.dtype == torch.float32:
            queries_keys.view(torch.complex64).mul_(self._rotations)
        else:
            # No complex numbers of 16-bit floats: rotate in float32, which also keeps far positions exact.
            wide = queries_keys.float().view(torch.complex64) * self._rotations
            queries_keys.copy_(wide.view(torch.float32))


def _rotations(table: torch.Tensor, spans: Sequence[Span]) -> torch.Tensor:
    """The rows of `table` [context, 1, dim / 2] for the positions of all new tokens."""
    if len(spans) == 1:
        return table.narrow(0, spans[0].start, spans[0].size)
    return table.index_select(0, torch.from_numpy(positions(spans)).to(table.device))

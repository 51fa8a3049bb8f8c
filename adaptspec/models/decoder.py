"""A lean inference decoder for the Llama family behind the Runner protocol."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from adaptspec.models.attention import (
    Attention,
    AttentionMetadata,
    GatheredAttention,
    Heads,
    Span,
    last_places,
    new_spans,
    positions,
)
from adaptspec.models.config import DecoderConfig
from adaptspec.models.in_place_attention import InPlaceAttention, group_rows
from adaptspec.models.kv_cache import CachedRows, KVCache
from adaptspec.models.layers import Norm, rotations
from adaptspec.models.runner import ModelInfo, Packed, without_padding
from adaptspec.models.small_pass import Computed, SmallPass
from adaptspec.models.weights import DecoderWeights
from adaptspec.progress import report_progress

GROUPED = 4  # rows from which one call of attention is faster than one each


class Decoder(CachedRows):
    """A Llama, Mistral, Qwen2 or Qwen3 model with its cache; satisfies `Runner`."""

    def __init__(self, info: ModelInfo, config: DecoderConfig, weights: DecoderWeights, cache: KVCache) -> None:
        super().__init__(cache)
        self.info = info
        self.device = weights.embedding.device
        self._config = config
        self._weights = weights
        self._cache = cache
        table = rotations(config.rope, config.head_dim, info.context)
        self._rotations = table.to(self.device).unsqueeze(1)  # [context, 1, head_dim / 2]
        small = SmallPass.fits(config, weights, cache)
        self._small = SmallPass(config, weights, cache, self._rotations) if small else None

    def adopt(self, weights: DecoderWeights) -> DecoderWeights:
        """Compute by these, of the same shapes, from the next pass on, and return the former ones.

        Keys and values that are cached stay those of the former.
        """
        former, self._weights = self._weights, weights
        if self._small is not None:
            self._small.adopt(weights)
        return former

    @torch.inference_mode()
    def forward(self, packed: Packed) -> torch.Tensor:
        """Logits [sum(wanted), vocab] in float32: an inference tensor, to be changed in inference mode only."""
        spans = new_spans(self._cache, packed)
        together = len(spans) >= GROUPED and self._cache.in_place and self.device.type == "cpu"
        groups = group_rows(self._cache, spans, packed.wanted.tolist()) if together else None
        logits, states = self._run(packed, spans, groups)
        if groups is not None and len(groups) < len(spans) and not _finite(logits):
            # What a former request left beyond a row's end may be no number. More is cleared than was read just now, so
            # that it does not happen again with every token.
            for span in spans:
                self._cache.clear(span.row, span.end, 2 * max(span.end for span in spans))
            logits, states = self._run(packed, spans, None)
        for span in spans:
            self._cache.set_length(span.row, span.end)
        if self._listener is not None:
            self._listener.heard(packed, [span.start for span in spans], states)
        return without_padding(logits, self.info.drawn_tokens)

    def _run(self, packed: Packed, spans: list[Span], groups: list[list[int]] | None) -> Computed:
        asked = self.asked if self._listener is not None and self._listener.listens else ()
        if self._small is not None and self._small.takes(spans):
            return self._small.run(packed, spans, groups, asked)
        return self._pass(packed, spans, groups, asked)

    def _pass(
        self, packed: Packed, spans: list[Span], groups: list[list[int]] | None, asked: Sequence[int]
    ) -> Computed:
        weights, states = self._weights, list[torch.Tensor]()
        hidden = weights.embedding.index_select(0, torch.from_numpy(packed.tokens).to(self.device))
        plan = PassPlan(self._config, self._cache, spans, self._rotations, hidden, groups=groups)
        for i, layer in enumerate(weights.layers):
            report_progress()
            if i in asked:
                states.append(hidden.clone())
            attended = plan.attend(i, layer.qkv(layer.attention_norm(hidden)), layer.qk_norm)
            if i + 1 == len(weights.layers) and i + 1 not in asked:
                # Once the last keys and values are cached only wanted tokens matter: the rest of a prompt stops here.
                hidden, attended = plan.pick(packed.wanted.tolist(), hidden, attended)
            hidden = layer.after_attention(hidden, attended)
        if len(weights.layers) in asked:
            states.append(hidden)
            (hidden,) = plan.pick(packed.wanted.tolist(), hidden)
        report_progress()
        return weights.head.logits(weights.norm(hidden)), torch.cat(states, 1) if states else hidden


def _finite(logits: torch.Tensor) -> bool:
    """Whether all are numbers, by one product; a sum that overflows says no."""
    flat = logits.numpy().reshape(-1)
    return math.isfinite(flat @ flat)


class PassPlan:
    """What one forward pass over the tokens in `spans` settles once for all layers; `like` tells dtype and device."""

    def __init__(
        self,
        config: DecoderConfig,
        cache: KVCache,
        spans: Sequence[Span],
        table: torch.Tensor,
        like: torch.Tensor,
        *,
        groups: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """`table` [context, 1, head_dim / 2] are the rotations of all positions; `groups` as in AttentionMetadata."""
        self._cache = cache
        self._spans = spans
        self._heads = Heads(config.heads, config.kv_heads, config.head_dim)
        self._queries = config.heads * config.head_dim
        self._slots = torch.from_numpy(np.concatenate([cache.slots(*span[:3]) for span in spans])).to(like.device)
        self._rotations = table.index_select(0, torch.from_numpy(positions(spans)).to(like.device))
        kinds = {window: AttentionMetadata(self._heads, spans, window, groups) for window in set(config.windows)}
        plans = {window: make_attention(cache, meta, like) for window, meta in kinds.items()}
        self._attention = [plans[window] for window in config.windows]

    def attend(self, layer: int, qkv: torch.Tensor, qk_norm: Norm | None) -> torch.Tensor:
        """Normalise and rotate queries and keys in `qkv`, cache keys and values, attend: [N, heads * dim]."""
        heads, dim = self._heads.query + self._heads.kv, self._heads.dim
        queries_keys = qkv.as_strided((len(qkv), heads, dim), (qkv.shape[1], dim, 1))
        if qk_norm is not None:
            queries_keys.copy_(qk_norm(queries_keys))
        if qkv.dtype == torch.float32:
            queries_keys.view(torch.complex64).mul_(self._rotations)
        else:
            # No complex numbers of 16-bit floats: rotate in float32, which also keeps far positions exact.
            wide = queries_keys.float().view(torch.complex64) * self._rotations
            queries_keys.copy_(wide.view(torch.float32))
        # Rotated keys and values lie side by side in `qkv` as they do in the cache: one copy stores both.
        self._cache.pool[layer].index_copy_(0, self._slots, qkv[:, self._queries :])
        return self._attention[layer](layer, qkv[:, : self._queries])

    def pick(self, wanted: Sequence[int], *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Of each tensor [N, ...] the last `wanted` of every row's tokens."""
        if [span.size for span in self._spans] == wanted:
            return tensors
        picked = torch.from_numpy(last_places(self._spans, wanted)).to(tensors[0].device)
        return tuple(tensor.index_select(0, picked) for tensor in tensors)


def make_attention(cache: KVCache, meta: AttentionMetadata, like: torch.Tensor) -> Attention:
    """The faster kind for this cache and device; `like` tells dtype and device."""
    kind = InPlaceAttention if cache.in_place and like.device.type == "cpu" else GatheredAttention
    return kind(cache, meta, like)

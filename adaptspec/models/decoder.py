"""A lean inference decoder for the Llama family behind the Runner protocol."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from adaptspec.models.attention import Attention, Heads, Span, last_indices, new_spans, positions
from adaptspec.models.config import DecoderConfig
from adaptspec.models.kv_cache import CachedRows, KVCache
from adaptspec.models.layers import RmsNorm, few_rows, rotations
from adaptspec.models.runner import Forward, ModelInfo, Packed, without_padding
from adaptspec.models.weights import DecoderWeights
from adaptspec.progress import report_progress


class Decoder(CachedRows):
    """A Llama, Mistral, Qwen2 or Qwen3 model with its cache; satisfies `Runner`.

    A token's logits have the same bits in every pass: products of several tokens and attention keep to orders of sums
    that do not depend on what else is in a pass (see `layers` and `attention`).
    """

    def __init__(self, info: ModelInfo, config: DecoderConfig, weights: DecoderWeights, cache: KVCache) -> None:
        super().__init__(cache)
        self.info = info
        self.device = weights.embedding.device
        self._config = config
        self._weights = weights
        self._cache = cache
        table = rotations(config.rope, config.head_dim, info.context)
        self._rotations = table.to(self.device).unsqueeze(1)  # [context, 1, head_dim / 2]

    @torch.inference_mode()
    def repeat(self, row: int, length: int) -> None:
        """See `Repeating`."""
        self._cache.repeat(row, length)

    @torch.inference_mode()
    def forward(self, packed: Packed) -> Forward:
        """See `Runner.forward`. They are inference tensors, to be changed in inference mode only."""
        spans = new_spans(self._cache, packed)
        logits, states = self._pass(packed, spans)
        for span in spans:
            self._cache.set_length(span.row, span.end)
        return Forward(without_padding(logits, self.info.drawn_tokens), states)

    def _pass(self, packed: Packed, spans: list[Span]) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Logits of wanted tokens, and what is captured of all."""
        weights, captured, states = self._weights, self._captured, list[torch.Tensor]()
        hidden = weights.embedding(torch.from_numpy(packed.tokens).to(self.device))
        plan = PassPlan(self._config, self._cache, spans, self._rotations, hidden)
        for i, layer in enumerate(weights.layers):
            report_progress()
            if i in captured:
                states.append(hidden)
            attended = plan.attend(i, layer.qkv(layer.attention_norm(hidden)), layer.qk_norm)
            if i + 1 == len(weights.layers) and i + 1 not in captured:
                # Once the last keys and values are cached only wanted tokens matter: the rest of a prompt stops here.
                hidden, attended = plan.pick(packed.wanted.tolist(), hidden, attended)
            hidden = layer.after_attention(hidden, attended)
        if len(weights.layers) in captured:
            states.append(hidden)
            (hidden,) = plan.pick(packed.wanted.tolist(), hidden)
        report_progress()
        return weights.head.logits(weights.norm(hidden)), torch.cat(states, 1) if states else None


class PassPlan:
    """What one forward pass over the tokens in `spans` settles once for all layers; `like` tells dtype and device."""

    def __init__(
        self, config: DecoderConfig, cache: KVCache, spans: Sequence[Span], table: torch.Tensor, like: torch.Tensor
    ) -> None:
        """`table` [context, 1, head_dim / 2] are the rotations of all positions."""
        self._cache = cache
        self._spans = spans
        self._heads = heads = Heads(config.heads, config.kv_heads, config.head_dim)
        self._queries = config.heads * config.head_dim
        self._slots = torch.from_numpy(np.concatenate([cache.slots(*span[:3]) for span in spans])).to(like.device)
        self._rotations = table.index_select(0, torch.from_numpy(positions(spans)).to(like.device))
        kinds = {window: Attention(cache, heads, spans, window, like) for window in set(config.windows)}
        self._attention = [kinds[window] for window in config.windows]

    def attend(self, layer: int, qkv: torch.Tensor, qk_norm: RmsNorm | None) -> torch.Tensor:
        """Normalise and rotate queries and keys in `qkv`, cache keys and values, attend: [N, heads * dim]."""
        heads, dim = self._heads.query + self._heads.kv, self._heads.dim
        queries_keys = qkv.as_strided((len(qkv), heads, dim), (qkv.shape[1], dim, 1))
        if qk_norm is not None:
            queries_keys.copy_(qk_norm(queries_keys))
        parts = few_rows(queries_keys)
        for part, turns in zip(parts, torch.split(self._rotations, len(parts[0])), strict=True):
            if part.dtype == torch.float32:
                part.view(torch.complex64).mul_(turns)
            else:
                # No complex numbers of 16-bit floats: rotate in float32, which also keeps far positions exact.
                wide = part.float().view(torch.complex64) * turns
                part.copy_(wide.view(torch.float32))
        # Rotated keys and values lie side by side in `qkv` as they do in the cache: one copy stores both.
        self._cache.pool[layer].index_copy_(0, self._slots, qkv[:, self._queries :])
        return self._attention[layer](layer, qkv[:, : self._queries])

    def pick(self, wanted: Sequence[int], *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Of each tensor [N, ...] the last `wanted` of every row's tokens."""
        if [span.size for span in self._spans] == wanted:
            return tensors
        picked = torch.from_numpy(last_indices(self._spans, wanted)).to(tensors[0].device)
        return tuple(tensor.index_select(0, picked) for tensor in tensors)

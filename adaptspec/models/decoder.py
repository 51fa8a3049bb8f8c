"""A lean inference decoder for the Llama family behind the `Runner` protocol.

Packed tokens go through a bare loop of fused operations; attention reads and writes the cache in place. It knows
nothing of sampling, drafts or requests.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from adaptspec.models.attention import Span
from adaptspec.models.cache_plan import require_room
from adaptspec.models.config import DecoderConfig
from adaptspec.models.head import float32_logits
from adaptspec.models.kv_cache import KVCache
from adaptspec.models.rope import rotations
from adaptspec.models.runner import ModelInfo, Packed
from adaptspec.models.small_pass import SmallPass
from adaptspec.models.step import Step
from adaptspec.models.weights import DecoderWeights, LayerWeights


class Decoder:
    """A Llama, Mistral, Qwen2 or Qwen3 model with its cache; satisfies `Runner`."""

    def __init__(self, info: ModelInfo, config: DecoderConfig, weights: DecoderWeights, cache: KVCache) -> None:
        self._info = info
        self._config = config
        self._weights = weights
        self._cache = cache
        self._device = weights.embedding.device
        table = rotations(config.rope, config.head_dim, info.context)
        self._rotations = table.to(self._device).unsqueeze(1)  # [context, 1, head_dim / 2]
        small = SmallPass.fits(config, weights, cache)
        self._small = SmallPass(config, weights, cache, self._rotations) if small else None

    @property
    def info(self) -> ModelInfo:
        """What the model is."""
        return self._info

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return self._device

    @property
    def free_memory(self) -> float:
        """See `Runner.free_memory`."""
        return self._cache.free_share

    def reserve(self, row: int, length: int) -> bool:
        """Make room for `length` tokens in all in `row`."""
        return self._cache.reserve(row, length)

    def length(self, row: int) -> int:
        """Tokens cached in `row`."""
        return self._cache.length(row)

    def truncate(self, row: int, length: int) -> None:
        """Forget the cached tokens from `length` on."""
        self._cache.truncate(row, length)

    def free(self, row: int) -> None:
        """Forget the row."""
        self._cache.free(row)

    @torch.inference_mode()
    def forward(self, packed: Packed) -> torch.Tensor:
        """Logits [sum(wanted), vocab] in float32: an inference tensor, to be changed in inference mode only."""
        spans = self._grow(packed)
        if self._small is not None and self._small.takes(spans):
            logits = self._small.run(packed.tokens, spans, packed.wanted)
        else:
            logits = self._pass(packed, spans)
        for span in spans:
            self._cache.set_length(span.row, span.end)
        return logits

    def _pass(self, packed: Packed, spans: list[Span]) -> torch.Tensor:
        weights = self._weights
        hidden = weights.embedding.index_select(0, torch.from_numpy(packed.tokens).to(self._device))
        step = Step(self._config, self._cache, spans, self._rotations, hidden)
        for i, layer in enumerate(weights.layers):
            attended = _attend(step, i, layer, hidden)
            if i + 1 == len(weights.layers):
                # Once the last keys and values are cached only wanted tokens matter: the rest of a prompt stops here.
                hidden, attended = step.pick(packed.wanted.tolist(), hidden, attended)
            hidden = _add_product(hidden, attended, layer.output, layer.output_bias)
            hidden = _add_product(hidden, _mlp(layer, hidden), layer.down, layer.down_bias)
        return float32_logits(weights.norm(hidden), weights.head)

    def _grow(self, packed: Packed) -> list[Span]:
        """Where each row's new tokens go; EngineError if there is no room for them."""
        spans = []
        for row, count in zip(packed.rows.tolist(), packed.counts.tolist(), strict=True):
            start = self._cache.length(row)
            require_room(self._cache.reserve(row, start + count), row)
            spans.append(Span(row, start, start + count))
        return spans


def _attend(step: Step, index: int, layer: LayerWeights, hidden: torch.Tensor) -> torch.Tensor:
    qkv = _product(layer.attention_norm(hidden), layer.qkv, layer.qkv_bias)
    return step.attend(index, qkv, layer.qk_norm)


def _mlp(layer: LayerWeights, hidden: torch.Tensor) -> torch.Tensor:
    gate, up = _product(layer.mlp_norm(hidden), layer.gate_up, layer.gate_up_bias).chunk(2, -1)
    return F.silu(gate).mul_(up)


def _product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return torch.mm(x, weight) if bias is None else torch.addmm(bias, x, weight)


def _add_product(total: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    total = total.addmm_(x, weight)
    return total if bias is None else total.add_(bias)

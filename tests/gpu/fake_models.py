"""Decoders of well-known shapes without weights, for fake CUDA, and what a pass of one moves (see `fake`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorDeviceMismatchError,
)

from adaptspec.models.config import DecoderConfig, read_decoder_config
from adaptspec.models.decoder import Decoder
from adaptspec.models.kv_cache import CUDA_BLOCK, CachePlan, KVCache
from adaptspec.models.layers import Linear, rms_norm
from adaptspec.models.runner import ModelInfo, Packed
from adaptspec.models.weights import DecoderWeights, LayerWeights
from adaptspec.types import IntArray
from tests.gpu.fake import Traffic

CUDA, BF16, CONTEXT = torch.device("cuda"), torch.bfloat16, 32768
SHAPES: dict[str, dict[str, Any]] = {
    "llama-8b": {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
    },
    "qwen-0.5b": {
        "model_type": "qwen2",
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "vocab_size": 151936,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "tie_word_embeddings": True,
    },
}


def passes(asked: list[tuple[str, int, int, int]]) -> list[dict[str, Any]]:
    """What one pass takes, for each (shape, rows, tokens cached in each, new tokens in each; up to 16 are wanted).

    `needed` bytes: every weight that a product reads, and every key and value seen, once.
    """
    results = []
    for name, rows, cached, width in asked:
        model, cache, weight_bytes = decoder(name, rows * (cached + width + CUDA_BLOCK))
        for row in range(rows):
            assert model.reserve(row, cached + width)
            cache.set_length(row, cached)
        with Traffic() as traffic:
            logits = model.forward(packed(rows, width))
        assert (logits.device.type, logits.dtype) == ("cuda", torch.float32)
        seen = rows * (cached + width) * cache.shape.bytes_per_token(BF16)
        kernels, moved = traffic.kernels.total(), traffic.moved.total()
        results.append({"kernels": kernels, "moved": moved, "needed": weight_bytes + seen, "uploads": traffic.uploads})
    return results


def refused() -> dict[str, str]:
    """What becomes of code that reads numbers of the device, or mixes devices."""
    x = torch.empty(3, 4, device=CUDA)
    tries: dict[str, Callable[[], object]] = {
        "item": lambda: x.sum().item(),
        "tolist": x.tolist,
        "mask": lambda: x[x > 0],
        "nonzero": x.nonzero,
        "branch": lambda: bool((x > 0).any()),
        "mixed": lambda: x + torch.zeros(4),
        "mixed index": lambda: x.index_select(0, torch.from_numpy(np.arange(2))),
        "neither": lambda: (x[:2] @ x[:2].t()).softmax(1).argmax(1),
    }
    found: dict[str, str] = {}
    for name, one in tries.items():
        try:
            found[name] = type(one()).__name__
        except (DataDependentOutputException, DynamicOutputShapeException, FakeTensorDeviceMismatchError) as error:
            found[name] = type(error).__name__
    return found


def packed(rows: int, width: int) -> Packed:
    every: IntArray = np.ones(rows, dtype=np.int64)
    return Packed(np.arange(rows), every * width, np.zeros(rows * width, dtype=np.int64), every * min(width, 16))


def decoder(name: str, tokens: int) -> tuple[Decoder, KVCache, int]:
    """A decoder in bfloat16 with room for so many tokens, its cache, and the bytes of what its products read."""
    config = read_decoder_config(SHAPES[name])
    plan = CachePlan(-(-tokens // CUDA_BLOCK) * CUDA_BLOCK, CONTEXT, CUDA_BLOCK)
    cache = KVCache(config.cache_shape, plan, BF16, CUDA)
    family = str(SHAPES[name]["model_type"])
    info = ModelInfo(name, family, 0, config.vocab_size, CONTEXT, name, (), "bfloat16")
    weights = weights_of(config)
    matrices = [part.weight for one in weights.layers for part in (one.qkv, one.output, one.gate_up, one.down)]
    read = sum(one.nbytes for one in (*matrices, weights.head.weight) if one is not None)
    return Decoder(info, config, weights, cache), cache, read


def weights_of(config: DecoderConfig) -> DecoderWeights:
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim

    def linear(wide: int, out: int, biased: bool = False) -> Linear:
        return Linear.of(made(wide, out), made(out) if biased else None)

    layers = tuple(
        LayerWeights(
            attention_norm=rms_norm(made(config.hidden), config.norm_eps),
            qkv=linear(config.hidden, q + 2 * kv, config.qkv_bias),
            qk_norm=None,
            output=linear(q, config.hidden),
            mlp_norm=rms_norm(made(config.hidden), config.norm_eps),
            gate_up=linear(config.hidden, 2 * config.mlp),
            down=linear(config.mlp, config.hidden),
        )
        for _ in range(config.layers)
    )
    embedding = made(config.vocab_size, config.hidden)
    head = Linear.of(embedding.t(), copied=False) if config.tied else linear(config.hidden, config.vocab_size)
    return DecoderWeights(embedding, layers, rms_norm(made(config.hidden), config.norm_eps), head, 0)


def made(*shape: int) -> torch.Tensor:
    return torch.empty(*shape, dtype=BF16, device=CUDA)

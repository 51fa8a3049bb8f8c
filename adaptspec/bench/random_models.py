"""Models of well-known shapes with random weights, made on their device: no file is read.

Two random models never agree on the likeliest token. But coupled choices share their noise, so the hotter tokens are
drawn, the more often a draft model chooses as its target does: a temperature sets the rate of acceptance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from adaptspec.gpu.decoder import GpuDecoder
from adaptspec.models.config import DecoderConfig
from adaptspec.models.layers import DenseLinear, Embedding, RmsNorm
from adaptspec.models.runner import Packed
from adaptspec.models.sampling import RowSampling, SamplingBatch
from adaptspec.models.weights import DecoderWeights, LayerWeights
from adaptspec.request import SamplingParams

DTYPE = torch.bfloat16
# As config.json of Llama 3.1 8B and Llama 3.2 1B has them, without the scaling of long contexts.
LLAMA_8B: Mapping[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128_256,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "tie_word_embeddings": False,
}
LLAMA_1B: Mapping[str, Any] = {
    **LLAMA_8B,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "head_dim": 64,
    "tie_word_embeddings": True,
}
_TINY = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 512,
    "max_position_embeddings": 1024,
}
TINY_TARGET: Mapping[str, Any] = {**LLAMA_8B, **_TINY}
TINY_DRAFT: Mapping[str, Any] = {**LLAMA_1B, **_TINY}
_POSITIONS = 256  # at which the choices of two models are compared


def random_weights(config: DecoderConfig, device: torch.device, seed: int = 0) -> DecoderWeights:
    """Weights in `DTYPE`, of a Llama without biases and norms of heads."""
    generator = None if device.type == "meta" else torch.Generator(device).manual_seed(seed)
    q, kv, parameters = config.heads * config.head_dim, config.kv_heads * config.head_dim, 0

    def matrix(rows: int, columns: int, deviation: float) -> torch.Tensor:
        nonlocal parameters
        parameters += rows * columns
        return torch.randn(rows, columns, dtype=DTYPE, device=device, generator=generator).mul_(deviation)

    def linear(inputs: int, outputs: int) -> DenseLinear:
        return DenseLinear(matrix(inputs, outputs, inputs**-0.5), None)

    def norm() -> RmsNorm:
        return RmsNorm(torch.ones(config.hidden, dtype=DTYPE, device=device), config.norm_eps)

    layers = tuple(
        LayerWeights(
            attention_norm=norm(),
            qkv=linear(config.hidden, q + 2 * kv),
            qk_norm=None,
            output=linear(q, config.hidden),
            mlp_norm=norm(),
            gate_up=linear(config.hidden, 2 * config.mlp),
            down=linear(config.mlp, config.hidden),
        )
        for _ in range(config.layers)
    )
    embedding = matrix(config.vocab_size, config.hidden, config.hidden**-0.5)
    head = DenseLinear(embedding.t(), None) if config.tied else linear(config.hidden, config.vocab_size)
    return DecoderWeights(Embedding(embedding, DTYPE), layers, norm(), head, parameters)


def weight_bytes(config: DecoderConfig) -> int:
    """Bytes of weights that a pass reads in 16 bits: all matrices but the embedding."""
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    layer = config.hidden * (q + 2 * kv) + q * config.hidden + 3 * config.hidden * config.mlp
    return DTYPE.itemsize * (config.layers * layer + config.hidden * config.vocab_size)


def any_tokenizer(vocab_size: int) -> PreTrainedTokenizerFast:
    """A tokenizer of so many tokens: all bytes, and words that are in no text."""
    names = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *(f"\u0120w{i}" for i in range(vocab_size))]
    tokenizer = Tokenizer(models.BPE({name: i for i, name in enumerate(names[:vocab_size])}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    made: PreTrainedTokenizerFast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)  # type: ignore[no-untyped-call]
    return made


def random_text(tokens: int, vocab_size: int, seed: int = 0) -> tuple[int, ...]:
    """Random tokens."""
    return tuple(np.random.default_rng(seed).integers(2, vocab_size, tokens).tolist())


def temperature_for(rate: float, target: GpuDecoder, draft: GpuDecoder) -> float:
    """The temperature at which both models choose the same token at the share `rate` of positions."""
    positions = min(_POSITIONS, target.info.context)
    text = np.array(random_text(positions, target.info.vocab_size, seed=7), dtype=np.int64)
    every, one = np.array([positions], dtype=np.int64), np.zeros(1, dtype=np.int64)
    logits = []
    for model in (target, draft):
        model.reserve(0, positions)
        logits.append(model.forward(Packed(one, every, text, every)).logits)
        model.free(0)
    chooser = target.make_chooser(1)

    def agreement(temperature: float) -> float:
        row = RowSampling(SamplingParams(temperature=temperature), 3, [0], 1, ())
        batch = SamplingBatch([row], target.info.vocab_size, chooser=chooser)
        paths = [[0] * n for n in range(positions)]  # so that each position has noise of its own
        index = np.zeros(positions, dtype=np.int64)
        chosen = [chooser.start(scores, batch, index, paths).wait().tokens[:, 0] for scores in logits]
        return float(np.mean(chosen[0] == chosen[1]))

    cold, hot = 0.01, 100.0
    for _ in range(16):
        middle = math.sqrt(cold * hot)
        cold, hot = (cold, middle) if agreement(middle) > rate else (middle, hot)
    return math.sqrt(cold * hot)

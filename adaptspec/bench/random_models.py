"""Models of well-known shapes with random weights, made on the device itself: nothing is read, nothing is fetched.

Random models never agree on what is likeliest. But coupled choices share their noise: the hotter they are drawn, the
more often target and draft choose alike. So a temperature forces any rate of acceptance, and nothing else is made up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from adaptspec.arrays import IntArray
from adaptspec.gpu.device_decoder import DeviceDecoder, device_decoder
from adaptspec.gpu.ops import gumbel_of, token_keys
from adaptspec.models.config import DecoderConfig, read_decoder_config
from adaptspec.models.kv_cache import CUDA_BLOCK, CachePlan
from adaptspec.models.layers import DenseLinear, Embedding, RmsNorm
from adaptspec.models.noise import Stream, position_keys, seed_keys
from adaptspec.models.runner import ModelInfo, Packed
from adaptspec.models.weights import DecoderWeights, LayerWeights

ENDS = (1,)
_LONGEST = 65_536
# Llama-3-8B, and Qwen2.5-0.5B with its vocabulary, as their config.json have them.
LLAMA_8B: Mapping[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128_256,
    "max_position_embeddings": _LONGEST,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "tie_word_embeddings": False,
}
QWEN_HALF_B: Mapping[str, Any] = {
    "model_type": "qwen2",
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "vocab_size": 128_256,
    "max_position_embeddings": _LONGEST,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "tie_word_embeddings": True,
}
_SMALL = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 512}
_SMALL |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 2048}


@dataclass(frozen=True)
class Sizes:
    """What a benchmark is run at."""

    target: Mapping[str, Any]
    draft: Mapping[str, Any]
    contexts: tuple[int, ...]  # that rows hold, where passes are timed
    rows: tuple[int, ...]
    batches: tuple[int, ...]  # of goodput
    prompt: int
    tokens: int  # of each row, that are timed
    cached: int  # tokens of all rows together


FULL = Sizes(
    LLAMA_8B, QWEN_HALF_B, (512, 8192, 32_768, 61_000), (1, 2, 4, 8, 16, 32, 64), (1, 4, 16, 64), 256, 128, 530_000
)
TINY = Sizes({**LLAMA_8B, **_SMALL}, {**QWEN_HALF_B, **_SMALL}, (16, 600), (1, 2), (1, 2), 12, 6, 2048)


def random_decoder(
    shape: Mapping[str, Any], device: torch.device, *, rows: int, cached: int, context: int, seed: int
) -> DeviceDecoder:
    """A decoder in bfloat16 for up to `rows` rows of up to `context` tokens, `cached` of all rows."""
    config, name = read_decoder_config(shape), str(shape["model_type"])
    torch.manual_seed(seed)
    weights = _weights(config, device)
    block = CUDA_BLOCK
    plan = CachePlan(max(cached, context + block) // block * block, context, block, rows)
    info = ModelInfo(name, name, weights.parameters, config.vocab_size, context, f"{name}-{seed}", ENDS, "bfloat16")
    return device_decoder(info, config, weights, plan)


def weight_bytes(shape: Mapping[str, Any]) -> int:
    """What a pass reads of the weights, in 16 bits: all but the embedding."""
    config = read_decoder_config(shape)
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    layer = config.hidden * (q + 2 * kv) + q * config.hidden + 3 * config.hidden * config.mlp
    return 2 * (config.layers * layer + config.hidden * config.vocab_size)


def room_for(sizes: Sizes, device: torch.device) -> int:
    """Tokens that both models' caches may have, of those that are asked for."""
    if device.type != "cuda":
        return sizes.cached
    shapes = [read_decoder_config(one).cache_shape for one in (sizes.target, sizes.draft)]
    left = 0.85 * torch.cuda.mem_get_info(device)[0] - 1.2 * (weight_bytes(sizes.target) + weight_bytes(sizes.draft))
    return min(sizes.cached, int(left / sum(one.bytes_per_token(torch.bfloat16) for one in shapes)))


def _weights(config: DecoderConfig, device: torch.device) -> DecoderWeights:
    numbers, q, kv = 0, config.heads * config.head_dim, config.kv_heads * config.head_dim

    def made(*shape: int, scale: float) -> torch.Tensor:
        nonlocal numbers
        numbers += math.prod(shape)
        return torch.randn(*shape, dtype=torch.bfloat16, device=device).mul_(scale)

    def linear(wide: int, out: int, *, biased: bool = False) -> DenseLinear:
        return DenseLinear(made(wide, out, scale=wide**-0.5), made(out, scale=0.1) if biased else None)

    def norm() -> RmsNorm:
        return RmsNorm(torch.ones(config.hidden, dtype=torch.bfloat16, device=device), config.norm_eps)

    layers = tuple(
        LayerWeights(
            attention_norm=norm(),
            qkv=linear(config.hidden, q + 2 * kv, biased=config.qkv_bias),
            qk_norm=None,
            output=linear(q, config.hidden),
            mlp_norm=norm(),
            gate_up=linear(config.hidden, 2 * config.mlp),
            down=linear(config.mlp, config.hidden),
        )
        for _ in range(config.layers)
    )
    embedding = made(config.vocab_size, config.hidden, scale=config.hidden**-0.5)
    head = DenseLinear(embedding.t(), None) if config.tied else linear(config.hidden, config.vocab_size)
    return DecoderWeights(Embedding(embedding, embedding.dtype), layers, norm(), head, numbers)


def any_tokenizer(vocab_size: int) -> PreTrainedTokenizerFast:
    """One of so many tokens: all bytes, and words that nobody writes."""
    names = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *(f"Ġw{i}" for i in range(vocab_size))]
    tokenizer = Tokenizer(models.BPE({name: i for i, name in enumerate(names[:vocab_size])}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    made: PreTrainedTokenizerFast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)  # type: ignore[no-untyped-call]
    return made


def prompts(count: int, tokens: int, vocab_size: int, seed: int = 0) -> list[tuple[int, ...]]:
    """So many of so many random tokens."""
    drawn = np.random.default_rng(seed).integers(2, vocab_size, (count, tokens))
    return [tuple(one) for one in drawn.tolist()]


@torch.inference_mode()
def temperature_for(rate: float, target: DeviceDecoder, draft: DeviceDecoder, positions: int = 256) -> float:
    """The temperature at which the two choose alike so often."""
    positions = min(positions, target.info.context - 1)
    fed: IntArray = np.array(prompts(1, positions, target.info.vocab_size, seed=7)[0], dtype=np.int64)
    one: IntArray = np.ones(1, dtype=np.int64)
    both = []
    for model in (target, draft):
        model.reserve(0, positions)
        both.append(model.forward(Packed(one - 1, one * positions, fed, one * positions)).logits)
        model.free(0)
    keys = position_keys(seed_keys(np.full(positions, 3, dtype=np.int64)), np.arange(positions), Stream.CHOICE)
    rows = torch.from_numpy(keys).to(target.device).unsqueeze(1)
    noise = gumbel_of(rows ^ token_keys(target.info.vocab_size, target.device))
    cold, hot = 0.01, 100.0
    for _ in range(20):
        middle = math.sqrt(cold * hot)
        mine, its = ((logits / middle + noise).argmax(1) for logits in both)
        cold, hot = (cold, middle) if float((mine == its).float().mean()) > rate else (middle, hot)
    return math.sqrt(cold * hot)

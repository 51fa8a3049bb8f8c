"""The shape of a Llama-family decoder, read from a Hugging Face config.json.

Knows the four families and their differences; every other architecture is left to transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from adaptspec.errors import ModelError
from adaptspec.models.fields import MOST_LAYERS, count, number
from adaptspec.models.kv_cache import CacheShape
from adaptspec.models.rope import RopeConfig, read_rope

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


@dataclass(frozen=True)
class DecoderConfig:
    """Sizes and variations of one decoder. `windows[layer]` is how many tokens a query sees, None for all."""

    family: str
    vocab_size: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    norm_eps: float
    tied: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    windows: tuple[int | None, ...]
    rope: RopeConfig
    context: int

    @property
    def layers(self) -> int:
        """Number of decoder layers."""
        return len(self.windows)

    @property
    def cache_shape(self) -> CacheShape:
        """What one cached token takes."""
        return CacheShape(self.layers, self.kv_heads, self.head_dim)


def is_lean(config: Mapping[str, Any]) -> bool:
    """Whether the lean decoder covers this config.json."""
    plain = config.get("hidden_act", "silu") == "silu" and config.get("partial_rotary_factor") in (None, 1.0)
    return config.get("model_type") in FAMILIES and plain


def read_decoder_config(config: Mapping[str, Any]) -> DecoderConfig:
    """Read config.json; raises ModelError for values that are missing, of the wrong kind, or do not fit together."""
    family = str(config.get("model_type"))
    hidden, heads = count(config, "hidden_size"), count(config, "num_attention_heads")
    kv_heads = count(config, "num_key_value_heads", heads)
    head_dim = count(config, "head_dim", 128 if family == "qwen3" else hidden // heads)
    if heads % kv_heads or head_dim % 2:
        raise ModelError(
            f"config.json: {heads} attention heads of {head_dim} cannot share {kv_heads} key-value heads; "
            "num_attention_heads must be a multiple of num_key_value_heads, and head_dim even"
        )
    bias = bool(config.get("attention_bias", False))
    return DecoderConfig(
        family=family,
        vocab_size=count(config, "vocab_size"),
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        mlp=count(config, "intermediate_size"),
        norm_eps=number(config, "rms_norm_eps", 1e-6),
        tied=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=family == "qwen2" or (bias and family != "mistral"),
        output_bias=bias and family in ("llama", "qwen3"),
        mlp_bias=bool(config.get("mlp_bias", False)) and family == "llama",
        qk_norm=family == "qwen3",
        windows=_windows(config, family, count(config, "num_hidden_layers", most=MOST_LAYERS)),
        rope=read_rope(config),
        context=count(config, "max_position_embeddings"),
    )


def _windows(config: Mapping[str, Any], family: str, layers: int) -> tuple[int | None, ...]:
    """Which layers see only a sliding window; Mistral's all do, Qwen's only if they say so."""
    if config.get("sliding_window") is None or family == "llama":
        return (None,) * layers
    window = count(config, "sliding_window")
    if family == "mistral":
        return (window,) * layers
    if not config.get("use_sliding_window", False):
        return (None,) * layers
    kinds = config.get("layer_types")
    if kinds is None:
        first = count(config, "max_window_layers", 28)
        kinds = ["full_attention"] * min(first, layers) + ["sliding_attention"] * max(layers - first, 0)
    if len(kinds) != layers or not set(kinds) <= {"full_attention", "sliding_attention"}:
        raise ModelError(f"config.json: layer_types must name full_attention or sliding_attention for {layers} layers")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)

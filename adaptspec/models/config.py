"""A model's config.json: the shape of a Llama-family decoder, and checks of what any architecture says of itself."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from adaptspec.errors import ModelError
from adaptspec.models.kv_cache import CacheShape

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
ROPE_SCALINGS = ("default", "linear", "llama3", "yarn")
MOST = 2**31 - 1
MOST_NUMBER = 1e18
MOST_LAYERS = 2**14
T = TypeVar("T")
_KINDS: Mapping[type, str] = {int: "whole numbers", str: "names", dict: "objects"}
# What other libraries build models of, which would go on for hours or fill the memory with what no model has.
_LAYERS = ("num_hidden_layers", "num_layers", "n_layers", "n_layer", "num_experts", "num_local_experts")
_SIZES = (
    *("vocab_size", "hidden_size", "d_model", "n_embd", "intermediate_size", "head_dim"),
    *("num_attention_heads", "num_key_value_heads", "num_heads", "n_head"),
    *("max_position_embeddings", "n_positions", "sliding_window"),
)


# What changes a decoder of these families, or a head of such layers, and the values that change nothing.
_PLAIN: Mapping[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "hidden_activation": ("silu",),
    "partial_rotary_factor": (1,),
    "attn_logit_softcapping": (0,),
    "final_logit_softcapping": (0,),
    "logit_scale": (1,),
    "input_embedding_scale": (1,),
    "output_multiplier": (1,),
    "attention_sink_bias": (False,),
    "add_swa_attention_sink_bias": (False,),
}


@dataclass(frozen=True)
class RopeConfig:
    """Base frequency and scaling. `parameters` are the scaling's own numbers, named as in config.json."""

    theta: float
    scaling: str
    parameters: Mapping[str, float]
    original_context: int
    context: int


@dataclass(frozen=True)
class Part:
    """Number `rank` of `size` equal parts of a model's heads, MLP and, if that can be divided, vocabulary."""

    rank: int = 0
    size: int = 1

    def of(self, whole: int) -> slice:
        """Which of the heads or columns, which can be divided."""
        each = whole // self.size
        return slice(self.rank * each, (self.rank + 1) * each)

    def vocabulary(self, tokens: int) -> slice:
        """Which of the tokens the head is for: all, if they cannot be divided."""
        return slice(0, tokens) if tokens % self.size else self.of(tokens)


WHOLE = Part()


@dataclass(frozen=True)
class DecoderConfig:
    """Sizes and variations of one decoder. `windows[layer]` is how many tokens a query sees, None for all."""

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
        return len(self.windows)

    @property
    def cache_shape(self) -> CacheShape:
        return CacheShape(self.layers, self.kv_heads, self.head_dim)

    def part(self, part: Part) -> DecoderConfig:
        """What one part of the model has. Raises ModelError: there are no such equal parts."""
        common, size = math.gcd(self.kv_heads, self.mlp), part.size
        if common % size:
            fits = ", ".join(str(count) for count in range(1, common + 1) if common % count == 0)
            raise ModelError(
                f"{self.kv_heads} key-value heads and {self.mlp} columns of the MLP cannot be split in {size} equal "
                f"parts; --tensor-parallel-size may be {fits}"
            )
        return replace(self, heads=self.heads // size, kv_heads=self.kv_heads // size, mlp=self.mlp // size)


def is_lean(config: Mapping[str, Any]) -> bool:
    """Whether the lean decoder covers this config.json."""
    return uncomputed(config) is None


def uncomputed(config: Mapping[str, Any]) -> str | None:
    """The first setting of a config.json that the lean decoder does not compute, and its value; None: there is none."""
    if config.get("model_type") not in FAMILIES:
        return f"model_type {shown(config.get('model_type'))}"
    rope = config.get("rope_parameters") or config.get("rope_scaling")
    for place in (config, rope if isinstance(rope, Mapping) else {}):
        for name, plain in _PLAIN.items():
            value = place.get(name)
            if value is not None and (value not in plain or isinstance(value, bool) is not isinstance(plain[0], bool)):
                return f"{name} {shown(value)}"
    return None


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


def read_rope(config: Mapping[str, Any]) -> RopeConfig:
    """Read RoPE settings from a config.json in either style (`rope_scaling` + `rope_theta`, or `rope_parameters`).

    Raises ModelError for scalings that are unknown, or whose rotations of cached tokens change as text grows.
    """
    raw = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(raw, Mapping) or any(isinstance(value, Mapping) for value in raw.values()):
        raise ModelError("config.json: rope parameters per layer type are not supported for this model family")
    scaling = str(raw.get("rope_type") or raw.get("type") or "default")
    if scaling not in ROPE_SCALINGS:
        raise ModelError(
            f"config.json: RoPE scaling {scaling!r} is not supported; known are {', '.join(ROPE_SCALINGS)}. "
            "Remove the scaling to use the model within its original context"
        )
    context = count(config, "max_position_embeddings", 2048)
    original = count(raw, "original_max_position_embeddings", context)
    original = count(config, "original_max_position_embeddings", original)
    theta = number(raw, "rope_theta", number(config, "rope_theta", 10_000.0))
    parameters = {key: value for key, value in raw.items() if isinstance(value, (int, float))}
    return RopeConfig(theta, scaling, parameters, original, context)


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


def count(config: Mapping[str, Any], name: str, default: int | None = None, *, most: int = MOST) -> int:
    """A positive integer of at most `most`; `default` if the field is missing or null. Raises ModelError."""
    value = default if config.get(name) is None else config[name]
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise ModelError(f"config.json: {name} is {shown(value)}; it must be a positive integer of at most {most}")
    return value


def number(config: Mapping[str, Any], name: str, default: float | None = None) -> float:
    """A positive number; `default` if the field is missing or null. Raises ModelError."""
    value = default if config.get(name) is None else config[name]
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value <= MOST_NUMBER:
        raise ModelError(
            f"config.json: {name} is {shown(value)}; it must be a positive number of at most {MOST_NUMBER:g}"
        )
    return float(value)


def inner(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """An object; empty if the field is missing or null. Raises ModelError."""
    value = {} if config.get(name) is None else config[name]
    if not isinstance(value, Mapping):
        raise ModelError(f"config.json: {name} is {shown(value)}; it must be an object")
    return value


def items(config: Mapping[str, Any], name: str, kind: type[T]) -> list[T]:
    """A list of such; empty if the field is missing or null. Raises ModelError."""
    value = [] if config.get(name) is None else config[name]
    if not isinstance(value, list) or any(type(item) is not kind for item in value):
        raise ModelError(f"config.json: {name} is {shown(value)}; it must be a list of {_KINDS[kind]}")
    return value


def check_sizes(config: object) -> None:
    """Raise ModelError for sizes that no model can have, in a config.json and the configs within it."""
    if isinstance(config, list):
        for part in config:
            check_sizes(part)
    if not isinstance(config, Mapping):
        return
    for name, value in config.items():
        most = MOST_LAYERS if name in _LAYERS else MOST if name in _SIZES else None
        if most is not None and isinstance(value, (int, float)) and not 0 <= value <= most:
            raise ModelError(f"config.json: {name} is {shown(value)}; no model has more than {most}, or less than 0")
        check_sizes(value)


def shown(value: object) -> str:
    """A value as it may stand in a message: a file may hold anything."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."

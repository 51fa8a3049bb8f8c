"""Llama-like models out of GGUF files for the torch runners: their config, and their weights in float32, one at a time.

Weights in few bits take less memory and are faster on llama.cpp; torch has what llama.cpp has not: heads and trees.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from adaptspec.errors import ModelError
from adaptspec.models.gguf import GgufHeader, TensorPlace

# By general.architecture: the family that the lean decoder has, and whether rows of q and k lie as pairs that rotate.
_FAMILIES = {"llama": ("llama", True), "qwen2": ("qwen2", False), "qwen3": ("qwen3", False)}
_PARTS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
_WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def torch_config(header: GgufHeader) -> dict[str, Any]:
    """What a config.json would say of the model. Raises ModelError: torch does not run it."""
    architecture, metadata = header.architecture, header.metadata
    if architecture not in _FAMILIES:
        raise ModelError(
            f"{header.path} ({architecture}) runs on llama.cpp alone: leave --runner out; on torch there are files of "
            f"{', '.join(_FAMILIES)}"
        )
    scaling = metadata.get(f"{architecture}.rope.scaling.type", "none")
    if scaling != "none" or "rope_freqs.weight" in header.tensors:
        raise ModelError(f"{header.path}: its scaled positions are computed by llama.cpp alone: leave --runner out")
    heads = header.number("attention.head_count")
    width = -(-header.number("embedding_length") // heads)
    width = metadata.get(f"{architecture}.attention.key_length", width)
    for key, plain in (("rope.dimension_count", width), ("rope.scale_linear", 1.0), ("attention.sliding_window", 0)):
        if metadata.get(f"{architecture}.{key}", plain) != plain:
            value = metadata[f"{architecture}.{key}"]
            raise ModelError(f"{header.path}: {key} {value!r} is computed by llama.cpp alone: leave --runner out")
    if metadata.get(f"{architecture}.expert_count"):
        raise ModelError(f"{header.path}: experts are computed by llama.cpp alone: leave --runner out")
    embedding = header.tensors.get("token_embd.weight")
    found: dict[str, Any] = {
        "model_type": _FAMILIES[architecture][0],
        "vocab_size": embedding.shape[0] if embedding is not None else header.vocab_size,
        "hidden_size": header.number("embedding_length"),
        "intermediate_size": header.number("feed_forward_length"),
        "num_hidden_layers": header.number("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": header.kv_heads,
        "rms_norm_eps": metadata.get(f"{architecture}.attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": header.number("context_length"),
        "rope_theta": metadata.get(f"{architecture}.rope.freq_base"),
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "attention_bias": "blk.0.attn_output.bias" in header.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in header.tensors,
    }
    if f"{architecture}.attention.key_length" in metadata:
        found["head_dim"] = header.number("attention.key_length")
    return found


class GgufTensors:
    """A file as safetensors opens one: tensors in float32, by the names that checkpoints of transformers have."""

    def __init__(self, header: GgufHeader) -> None:
        self._header = header
        self._paired = _FAMILIES[header.architecture][1]
        self._heads, self._kv_heads = header.number("attention.head_count"), header.kv_heads
        self._names = {_name(own): own for own in header.tensors}

    def keys(self) -> Collection[str]:
        """Names of all tensors."""
        return self._names.keys()

    def get_slice(self, name: str) -> GgufSlice:
        """A tensor of which parts may be asked for."""
        return GgufSlice(self, name, self._header.tensors[self._names[name]].shape)

    def get_tensor(self, name: str) -> torch.Tensor:
        """Raises ModelError: it cannot be read."""
        place = self._header.tensors[self._names[name]]
        tensor = torch.from_numpy(_numbers(place))
        if self._paired and name.endswith(("q_proj.weight", "k_proj.weight", "q_proj.bias", "k_proj.bias")):
            heads = self._heads if ".q_proj." in name else self._kv_heads
            tensor = tensor.view(heads, -1, 2, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)
        return tensor


@dataclass(frozen=True)
class GgufSlice:
    """One tensor, read when a part of it is."""

    tensors: GgufTensors
    name: str
    shape: tuple[int, ...]

    def get_shape(self) -> Sequence[int]:
        return self.shape

    def __getitem__(self, part: Any) -> torch.Tensor:
        return self.tensors.get_tensor(self.name)[part]


def _name(own: str) -> str:
    """Of a tensor called blk.0.attn_q.weight, model.layers.0.self_attn.q_proj.weight; unknown names are unchanged."""
    stem, _, kind = own.rpartition(".")
    if stem in _WHOLE:
        return f"{_WHOLE[stem]}.{kind}"
    first, _, rest = stem.partition(".")
    layer, _, part = rest.partition(".")
    return f"model.layers.{layer}.{_PARTS[part]}.{kind}" if first == "blk" and part in _PARTS else own


def _numbers(place: TensorPlace) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Float32, in the tensor's shape."""
    try:
        kind = GGMLQuantizationType(place.kind)
        items, size = GGML_QUANT_SIZES[kind]
        count = math.prod(place.shape)
        if not place.shape or place.shape[-1] % items:
            raise ValueError(f"a shape of {place.shape}")
        raw = np.fromfile(place.path, dtype=np.uint8, count=count // items * size, offset=place.start)
        found = dequantize(raw.reshape(*place.shape[:-1], -1), kind)
    except (ValueError, NotImplementedError, OSError) as error:
        raise ModelError(
            f"{place.path}: a tensor cannot be read into float32 ({error}); leave --runner out, or download it again"
        ) from error
    return np.ascontiguousarray(found, dtype=np.float32).reshape(place.shape)

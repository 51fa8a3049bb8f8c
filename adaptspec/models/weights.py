"""The weights of a decoder as its forward pass wants them: fused, permuted for RoPE, laid out for `mm`.

Every matrix is [in, out] and contiguous: on CPU that is up to twice as fast for a few tokens as the stored
[out, in]. Query and key dimensions are reordered so that RoPE's pairs lie next to each other (see rope.py), and a
norm's weight is multiplied into the matrix behind it where that saves time.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from adaptspec.models.config import DecoderConfig
from adaptspec.models.layers import Norm, rms_norm, rms_norm_into
from adaptspec.models.model_files import Checkpoint

HEAD_COPY_LIMIT = 64 * 2**20  # bytes: beyond this a tied head shares memory with the embedding instead


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer. `qkv` is [hidden, (heads + 2 kv_heads) head_dim], `gate_up` [hidden, 2 mlp]."""

    attention_norm: Norm
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    qk_norm: Norm | None  # over [N, heads + kv_heads, head_dim]
    output: torch.Tensor
    output_bias: torch.Tensor | None
    mlp_norm: Norm
    gate_up: torch.Tensor
    gate_up_bias: torch.Tensor | None
    down: torch.Tensor
    down_bias: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """A whole decoder: `embedding` is [vocab, hidden], `head` [hidden, vocab]."""

    embedding: torch.Tensor
    layers: tuple[LayerWeights, ...]
    norm: Norm
    head: torch.Tensor
    parameters: int


def load_weights(
    checkpoint: Checkpoint, config: DecoderConfig, dtype: torch.dtype, device: torch.device
) -> DecoderWeights:
    """Read all weights; ModelError if a tensor is missing, misshaped or not accounted for."""
    reader = _Reader(checkpoint, config, dtype, device)
    embedding = reader.table("model.embed_tokens.weight")
    layers = tuple(_layer(reader, config, f"model.layers.{i}.") for i in range(config.layers))
    head = (embedding if config.tied else reader.table("lm_head.weight")).t()
    if _copies_head(head, config.tied):
        head = head.contiguous()
        norm = reader.norm_into("model.norm.weight", head)
    else:
        norm = reader.norm("model.norm.weight")
    # Old checkpoints store the rotary frequencies, and some a copy of a tied head.
    checkpoint.finish(["rotary_emb.inv_freq", *(["lm_head.weight"] if config.tied else [])])
    return DecoderWeights(embedding, layers, norm, head, reader.parameters)


def _copies_head(head: torch.Tensor, tied: bool) -> bool:
    """Whether the head is laid out for `mm`; on a CPU, 16-bit heads are faster as stored (see `float32_logits`)."""
    if head.device.type == "cpu":
        return head.dtype == torch.float32 and not (tied and head.nbytes > HEAD_COPY_LIMIT)
    return not tied


def _layer(reader: _Reader, config: DecoderConfig, prefix: str) -> LayerWeights:
    attention, mlp = prefix + "self_attn.", prefix + "mlp."
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    qkv = [f"{attention}{part}_proj" for part in "qkv"]
    gate_up = [f"{mlp}gate_proj", f"{mlp}up_proj"]
    qkv_matrix = reader.matrix([name + ".weight" for name in qkv], [q, kv, kv], config.hidden, rotated=2)
    gate_up_matrix = reader.matrix([name + ".weight" for name in gate_up], [config.mlp, config.mlp], config.hidden)
    return LayerWeights(
        attention_norm=reader.norm_into(prefix + "input_layernorm.weight", qkv_matrix),
        qkv=qkv_matrix,
        qkv_bias=reader.bias(qkv, [q, kv, kv], config.qkv_bias, rotated=2),
        qk_norm=reader.head_norm(attention) if config.qk_norm else None,
        output=reader.matrix([attention + "o_proj.weight"], [config.hidden], q),
        output_bias=reader.bias([attention + "o_proj"], [config.hidden], config.output_bias),
        mlp_norm=reader.norm_into(prefix + "post_attention_layernorm.weight", gate_up_matrix),
        gate_up=gate_up_matrix,
        gate_up_bias=reader.bias(gate_up, [config.mlp, config.mlp], config.mlp_bias),
        down=reader.matrix([mlp + "down_proj.weight"], [config.hidden], config.mlp),
        down_bias=reader.bias([mlp + "down_proj"], [config.hidden], config.mlp_bias),
    )


class _Reader:
    """Reads tensors into place, counting parameters."""

    def __init__(self, checkpoint: Checkpoint, config: DecoderConfig, dtype: torch.dtype, device: torch.device) -> None:
        self._checkpoint = checkpoint
        self._config = config
        self._dtype = dtype
        self._device = device
        self.parameters = 0

    def table(self, name: str) -> torch.Tensor:
        """One row per token of the vocabulary [vocab, hidden], as it is stored."""
        return self._place(self._take(name, (self._config.vocab_size, self._config.hidden)))

    def norm(self, name: str) -> Norm:
        """A norm over the residual stream."""
        return rms_norm(self._norm_weight(name), self._config.norm_eps)

    def norm_into(self, name: str, matrix: torch.Tensor) -> Norm:
        """A norm over the residual stream that only `matrix` reads, which may take over its weight."""
        return rms_norm_into(self._norm_weight(name), self._config.norm_eps, matrix)

    def matrix(self, names: list[str], outs: list[int], width: int, rotated: int = 0) -> torch.Tensor:
        """Stored matrices [out, in] side by side as one [in, outs]; the first `rotated` are permuted for RoPE."""
        parts = [self._take(name, (out, width)) for name, out in zip(names, outs, strict=True)]
        return self._place(self._fuse(parts, rotated)).t().contiguous()

    def bias(self, modules: list[str], outs: list[int], present: bool, rotated: int = 0) -> torch.Tensor | None:
        """Stored biases end to end, or None for a model without."""
        if not present:
            return None
        parts = [self._take(f"{name}.bias", (out,)) for name, out in zip(modules, outs, strict=True)]
        return self._place(self._fuse(parts, rotated))

    def head_norm(self, attention: str) -> Norm:
        """One norm over all query and key heads, each with its weight."""
        dim = self._config.head_dim
        query, key = (self._rotate(self._take(f"{attention}{part}_norm.weight", (dim,))) for part in "qk")
        rows = [query.expand(self._config.heads, dim), key.expand(self._config.kv_heads, dim)]
        return rms_norm(self._place(torch.cat(rows)), self._config.norm_eps)

    def _norm_weight(self, name: str) -> torch.Tensor:
        return self._place(self._take(name, (self._config.hidden,)))

    def _place(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(device=self._device, dtype=self._dtype)

    def _take(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        tensor = self._checkpoint.take(name, shape)
        self.parameters += tensor.numel()
        return tensor

    def _fuse(self, parts: list[torch.Tensor], rotated: int) -> torch.Tensor:
        return torch.cat([self._rotate(part) if i < rotated else part for i, part in enumerate(parts)])

    def _rotate(self, rows: torch.Tensor) -> torch.Tensor:
        """Reorder each head's dimensions from (0 .. d/2, d/2 .. d) to (0, d/2, 1, d/2 + 1, ...)."""
        half = self._config.head_dim // 2
        return rows.view(-1, 2, half, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)

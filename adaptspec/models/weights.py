"""The weights of a decoder as its forward pass wants them: fused, permuted for RoPE, laid out for products.

Query and key dimensions are reordered so that RoPE's pairs lie next to each other (see `rotations`), and a norm's
weight is multiplied into the matrix behind it where that saves time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open

from adaptspec.errors import ModelError
from adaptspec.files import open_file
from adaptspec.models.config import WHOLE, DecoderConfig, Part
from adaptspec.models.layers import Linear, Norm, rms_norm, rms_norm_into
from adaptspec.models.model_files import PICKLES, weight_files

MTP = "mtp."  # how tensors of a head begin that lies in the target's own files
HEAD_COPY_LIMIT = 64 * 2**20  # bytes: beyond this a tied head shares memory with the embedding instead


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer. `qkv` gives (heads + 2 kv_heads) head_dim numbers, `gate_up` 2 mlp."""

    attention_norm: Norm
    qkv: Linear
    qk_norm: Norm | None  # over [N, heads + kv_heads, head_dim]
    output: Linear
    mlp_norm: Norm
    gate_up: Linear
    down: Linear

    def after_attention(self, hidden: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """States [N, hidden] behind the layer, of those before it (changed in place) and what they attended."""
        hidden = self.output.add_to(hidden, attended)
        gate, up = self.gate_up(self.mlp_norm(hidden)).chunk(2, -1)
        return self.down.add_to(hidden, F.silu(gate).mul_(up))


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """A whole decoder: `embedding` is [vocab, hidden], `head` gives vocab numbers."""

    embedding: torch.Tensor
    layers: tuple[LayerWeights, ...]
    norm: Norm
    head: Linear
    parameters: int


def load_weights(
    folder: Path,
    config: DecoderConfig,
    dtype: torch.dtype,
    device: torch.device,
    part: Part = WHOLE,
    *,
    tensors: Mapping[str, torch.Tensor] | None = None,
) -> DecoderWeights:
    """Read all weights, or a part: the embedding, norms and, behind a sum over all parts, biases are only in whole.

    Beside them no more than one matrix is held, so that a device that they fill can load them. `tensors` by their names
    are read in place of the folder's; some are shared then, none is written on. Raises ModelError: a tensor is missing,
    misshaped or not accounted for.
    """
    reader = WeightReader(folder, config, dtype, device, part, tensors=tensors)
    table, mine = (config.vocab_size, config.hidden), part.vocabulary(config.vocab_size)
    embedding = reader.take("model.embed_tokens.weight", table)
    layers = tuple(reader.layer(f"model.layers.{i}.") for i in range(config.layers))
    head = (embedding[mine] if config.tied else reader.take("lm_head.weight", table, mine)).t()
    copied = _copies_head(head, config.tied)
    if copied:
        head = head.contiguous()
    norm = reader.norm("model.norm.weight", head if copied else None)
    # Old checkpoints store the rotary frequencies, and some a copy of a tied head.
    reader.finish(["rotary_emb.inv_freq", *(["lm_head.weight"] if config.tied else [])], beside=(MTP,))
    return DecoderWeights(embedding, layers, norm, Linear.of(head, copied=copied), reader.parameters)


def _copies_head(head: torch.Tensor, tied: bool) -> bool:
    """Whether the head is laid out for `mm`; on a CPU, 16-bit heads are faster as stored (see `float32_logits`)."""
    if head.device.type == "cpu":
        return head.dtype == torch.float32 and not (tied and head.nbytes > HEAD_COPY_LIMIT)
    return not tied


class _Held:
    """Tensors in memory, read as safetensors are."""

    def __init__(self, found: Mapping[str, Any]) -> None:
        self._tensors = {str(name): one for name, one in found.items() if isinstance(one, torch.Tensor)}

    def keys(self) -> Iterable[str]:
        return self._tensors.keys()

    def get_tensor(self, name: str) -> torch.Tensor:
        return self._tensors[name]

    def get_slice(self, name: str) -> _Slice:
        return _Slice(self._tensors[name])


@dataclass(frozen=True)
class _Slice:
    tensor: torch.Tensor

    def get_shape(self) -> Sequence[int]:
        return self.tensor.shape

    def __getitem__(self, part: Any) -> torch.Tensor:
        return self.tensor[part]


def read_pickle(path: Path) -> dict[str, Any]:
    """Plain values by their names, and a tensor alone as `embedding`.

    Raises:
        ModelError: it cannot be opened, is no regular file, or is any other pickle.
    """
    try:
        descriptor = open_file(path)
    except OSError as error:
        raise ModelError(
            f"{path}: cannot be read ({error.strerror}); check its permissions, or download it again"
        ) from error
    try:
        with open(descriptor, "rb") as file:
            held = torch.load(file, map_location="cpu", weights_only=True)
        return {"embedding": held} if isinstance(held, torch.Tensor) else dict(held)
    except Exception as error:  # whatever damage leads to
        raise ModelError(
            f"{path} holds more than plain tensors, or is damaged ({type(error).__name__}: {str(error)[:80]}); "
            "convert it to safetensors where you trust it"
        ) from error


def _opened(path: Path) -> Any:
    if path.suffix in PICKLES:
        return _Held(read_pickle(path))
    try:
        return safe_open(path, framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path} is not a readable safetensors file ({error}); download it again") from error


class WeightReader:
    """Reads tensors of a model directory into place, one at a time, counting parameters."""

    def __init__(
        self,
        folder: Path,
        config: DecoderConfig,
        dtype: torch.dtype,
        device: torch.device,
        part: Part = WHOLE,
        *,
        pickles: bool = False,
        tensors: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        """`pickles` may be read where there are no safetensors: plain tensors alone, which run no code. `tensors`: no
        file is.
        """
        self._folder = folder
        self._config = config
        self._dtype = dtype
        self._device = device
        self._part = part
        self._mapped = tensors is None
        self._files: dict[str, Any] = {} if tensors is None else dict.fromkeys(tensors, _Held(tensors))
        for path in weight_files(folder, pickles=pickles) if tensors is None else ():
            file = _opened(path)
            if twice := self._files.keys() & set(file.keys()):
                raise ModelError(f"{folder} holds {min(twice)} in two files; keep the one that is the model's")
            self._files.update(dict.fromkeys(file.keys(), file))
        self._unread = set(self._files)
        self.parameters = 0

    def has(self, name: str) -> bool:
        return name in self._files

    def numbers(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """A tensor that is no weight: as it is stored, and not counted."""
        stored = self._stored(name, shape)
        self.parameters -= stored.numel()
        return stored

    def layer(self, prefix: str, width: int | None = None) -> LayerWeights:
        """A decoder layer, or one whose attention takes `width` numbers: its own norm is then of a part of them."""
        config, attention, mlp = self._config, prefix + "self_attn.", prefix + "mlp."
        q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
        qkv_parts = {f"{attention}q_proj": q, f"{attention}k_proj": kv, f"{attention}v_proj": kv}
        qkv, qkv_bias = self.fused(qkv_parts, width or config.hidden, config.qkv_bias, rotated=2)
        gate_up_parts = {f"{mlp}gate_proj": config.mlp, f"{mlp}up_proj": config.mlp}
        gate_up, gate_up_bias = self.fused(gate_up_parts, config.hidden, config.mlp_bias)
        return LayerWeights(
            attention_norm=self.norm(prefix + "input_layernorm.weight", None if width else qkv),
            qkv=Linear.of(qkv, qkv_bias),
            qk_norm=self.head_norm(attention) if config.qk_norm else None,
            output=Linear.of(*self.summed(f"{attention}o_proj", (config.hidden, q), config.output_bias)),
            mlp_norm=self.norm(prefix + "post_attention_layernorm.weight", gate_up),
            gate_up=Linear.of(gate_up, gate_up_bias),
            down=Linear.of(*self.summed(f"{mlp}down_proj", (config.hidden, config.mlp), config.mlp_bias)),
        )

    def take(self, name: str, shape: tuple[int, ...], mine: slice | tuple[slice, ...] = slice(None)) -> torch.Tensor:
        """What is `mine` of one tensor; ModelError if it is missing or of another shape than `shape`."""
        # A tensor that is kept as it is stored would keep the whole file mapped, which is resident once it was read.
        copied = self._mapped and self._device.type == "cpu"
        return self._stored(name, shape, mine).to(device=self._device, dtype=self._dtype, copy=copied)

    def _stored(self, name: str, shape: tuple[int, ...], mine: slice | tuple[slice, ...] = slice(None)) -> torch.Tensor:
        if name not in self._files:
            raise ModelError(f"{self._folder}: tensor {name} is missing; config.json does not belong to these weights")
        stored = self._files[name].get_slice(name)
        if tuple(stored.get_shape()) != shape:
            raise ModelError(
                f"{self._folder}: tensor {name} is {tuple(stored.get_shape())} where config.json asks for {shape}; "
                "config.json does not belong to these weights"
            )
        self._unread.discard(name)
        self.parameters += math.prod(shape)
        # A whole tensor is the file itself, and takes no memory until it is read.
        tensor: torch.Tensor = self._files[name].get_tensor(name) if self._part.size == 1 else stored[mine]
        return tensor

    def finish(self, ignored: Sequence[str], *, beside: tuple[str, ...] = ()) -> None:
        """Raise ModelError if tensors were left unread, but for names that end in one of `ignored`.

        Those that begin with one of `beside` are of another model in the same files.
        """
        extra = sorted(
            name for name in self._unread if not name.endswith(tuple(ignored)) and not name.startswith(beside)
        )
        if extra:
            listed = ", ".join(extra[:3]) + (f" and {len(extra) - 3} more" if len(extra) > 3 else "")
            raise ModelError(f"{self._folder}: config.json does not account for {listed}; is model_type right?")

    def fused(
        self, modules: dict[str, int], width: int, biased: bool, rotated: int = 0
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Weight [in, out] and bias of modules (name: outs) side by side; the first `rotated` are permuted for RoPE."""

        def whole(kind: str, *inputs: int) -> torch.Tensor:
            stored = [self._stored(f"{one}.{kind}", (n, *inputs), self._part.of(n)) for one, n in modules.items()]
            room = torch.empty((sum(map(len, stored)), *inputs), dtype=self._dtype, device=self._device)
            for i, (part, own) in enumerate(zip(torch.split(room, [*map(len, stored)]), stored, strict=True)):
                part.copy_(self._rotate(own) if i < rotated else own)
            return room

        return whole("weight", width).t().contiguous(), whole("bias") if biased else None

    def summed(self, name: str, shape: tuple[int, int], biased: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The same of one module whose outs are the sums of all parts', of which the first brings the bias."""
        weight = self.take(f"{name}.weight", shape, (slice(None), self._part.of(shape[1])))
        bias = self.take(f"{name}.bias", shape[:1]) if biased else None
        return weight.t().contiguous(), None if self._part.rank else bias

    def norm(self, name: str, matrix: torch.Tensor | None = None, *, width: int | None = None) -> Norm:
        """A norm over `width` numbers or the residual stream; if only `matrix` reads it, that may take its weight."""
        weight = self.take(name, (width or self._config.hidden,))
        eps = self._config.norm_eps
        return rms_norm(weight, eps) if matrix is None else rms_norm_into(weight, eps, matrix)

    def head_norm(self, attention: str) -> Norm:
        """One norm over all query and key heads, each with its weight."""
        dim = self._config.head_dim
        query, key = (self._rotate(self.take(f"{attention}{part}_norm.weight", (dim,))) for part in "qk")
        heads, kv_heads = (count // self._part.size for count in (self._config.heads, self._config.kv_heads))
        weight = torch.cat([query.expand(heads, dim), key.expand(kv_heads, dim)])
        return rms_norm(weight, self._config.norm_eps)

    def _rotate(self, rows: torch.Tensor) -> torch.Tensor:
        """Reorder each head's dimensions from (0 .. d/2, d/2 .. d) to (0, d/2, 1, d/2 + 1, ...)."""
        half = self._config.head_dim // 2
        return rows.view(-1, 2, half, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)

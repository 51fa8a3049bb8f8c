"""The weights of a decoder as its forward pass wants them: fused, permuted for RoPE, laid out for products.

Query and key dimensions are reordered so that RoPE's pairs lie next to each other (see `rotations`). On a CPU weights
are held once: matrices in the form of their products, and the embedding where it lies in its file.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from adaptspec.errors import ModelError
from adaptspec.files import open_file
from adaptspec.models.config import WHOLE, DecoderConfig, Part
from adaptspec.models.gguf_tensors import GgufTensors
from adaptspec.models.layers import Embedding, Linear, RmsNorm, computed_in, head_linear, linear, silu_product
from adaptspec.models.model_files import PICKLES, weight_files

MTP = "mtp."  # how tensors of a head begin that lies in the target's own files


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer. `qkv` gives (heads + 2 kv_heads) head_dim numbers, `gate_up` 2 mlp."""

    attention_norm: RmsNorm
    qkv: Linear
    qk_norm: RmsNorm | None  # over [N, heads + kv_heads, head_dim]
    output: Linear
    mlp_norm: RmsNorm
    gate_up: Linear
    down: Linear

    def after_attention(self, hidden: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """States [N, hidden] behind the layer, of those before it and what they attended."""
        hidden = hidden + self.output(attended)
        return hidden.add_(self.down(silu_product(self.gate_up(self.mlp_norm(hidden)))))


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """A whole decoder; `head` gives vocab numbers."""

    embedding: Embedding
    layers: tuple[LayerWeights, ...]
    norm: RmsNorm
    head: Linear
    parameters: int


def load_weights(
    folder: Path,
    config: DecoderConfig,
    dtype: torch.dtype,
    device: torch.device,
    part: Part = WHOLE,
    *,
    tensors: GgufTensors | None = None,
) -> DecoderWeights:
    """Read all weights, or a part: the embedding, norms and, behind a sum over all parts, biases are only in whole.

    While they are read at most one layer, or the head, is held twice. `tensors` are read in place of the folder's.
    Raises ModelError: a tensor is missing, misshaped or not accounted for, or does not fit `dtype`.
    """
    reader = WeightReader(folder, config, dtype, device, part, tensors=tensors)
    table, mine = (config.vocab_size, config.hidden), part.vocabulary(config.vocab_size)
    layers = []
    for i in range(config.layers):
        layers.append(reader.layer(f"model.layers.{i}."))
        reader.release()
    norm = reader.norm("model.norm.weight")
    on_device = device.type != "cpu"
    if config.tied and on_device:  # one tensor serves both
        embedding = reader.embedding("model.embed_tokens.weight")
        head = head_linear(embedding.table[mine], shared=True)
    else:
        name = "model.embed_tokens.weight" if config.tied else "lm_head.weight"
        head = head_linear(reader.take(name, table, mine))
        reader.release()
        embedding = reader.embedding("model.embed_tokens.weight")
    # Old checkpoints store the rotary frequencies, and some a copy of a tied head.
    reader.finish(["rotary_emb.inv_freq", *(["lm_head.weight"] if config.tied else [])], other_models=(MTP,))
    return DecoderWeights(embedding, tuple(layers), norm, head, reader.parameters)


class _Held:
    """Tensors in memory, read as safetensors are."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = tensors

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
        return _Held({str(name): one for name, one in read_pickle(path).items() if isinstance(one, torch.Tensor)})
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
        tensors: GgufTensors | None = None,
    ) -> None:
        """`pickles` may be read where there are no safetensors: plain tensors alone, which run no code. `tensors`: no
        file is.
        """
        self._folder = folder
        self._config = config
        self._dtype, self._computed = dtype, computed_in(dtype, device)
        self._device = device
        self._part = part
        self._paths = weight_files(folder, pickles=pickles) if tensors is None else ()
        self._files: dict[str, Any] = {} if tensors is None else dict.fromkeys(tensors.keys(), tensors)
        self.release()
        self._unread = set(self._files)
        self._sizes: dict[str, int] = {}  # of the tensors that were read, in numbers

    @property
    def parameters(self) -> int:
        """Numbers of all weights that were read, each tensor counted once."""
        return sum(self._sizes.values())

    def release(self) -> None:
        """Map the files anew: what was read of them no longer counts as memory of this process."""
        found: dict[str, Any] = {}
        for path in self._paths:
            file = _opened(path)
            if twice := found.keys() & set(file.keys()):
                raise ModelError(f"{self._folder} holds {min(twice)} in two files; keep the one that is the model's")
            found.update(dict.fromkeys(file.keys(), file))
        if self._paths:
            self._files = found

    def has(self, name: str) -> bool:
        return name in self._files

    def numbers(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """A tensor that is no weight: as it is stored, and not counted."""
        stored = self._stored(name, shape)
        del self._sizes[name]
        return stored

    def layer(self, prefix: str, width: int | None = None) -> LayerWeights:
        """A decoder layer, or one whose attention takes `width` numbers: its own norm is then of a part of them."""
        config, attention, mlp = self._config, prefix + "self_attn.", prefix + "mlp."
        q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
        qkv_parts = {f"{attention}q_proj": q, f"{attention}k_proj": kv, f"{attention}v_proj": kv}
        gate_up_parts = {f"{mlp}gate_proj": config.mlp, f"{mlp}up_proj": config.mlp}
        return LayerWeights(
            attention_norm=self.norm(prefix + "input_layernorm.weight"),
            qkv=self.fused(qkv_parts, width or config.hidden, config.qkv_bias, rotated=2),
            qk_norm=self.head_norm(attention) if config.qk_norm else None,
            output=self.summed(f"{attention}o_proj", (config.hidden, q), config.output_bias),
            mlp_norm=self.norm(prefix + "post_attention_layernorm.weight"),
            gate_up=self.fused(gate_up_parts, config.hidden, config.mlp_bias),
            down=self.summed(f"{mlp}down_proj", (config.hidden, config.mlp), config.mlp_bias),
        )

    def take(self, name: str, shape: tuple[int, ...], mine: slice | tuple[slice, ...] = slice(None)) -> torch.Tensor:
        """What is `mine` of a matrix, as products hold it; ModelError if it is missing or of another shape."""
        return self._stored(name, shape, mine).to(device=self._device, dtype=self._dtype)

    def vector(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """The same of what is added to states or multiplied with them, as these are computed."""
        # A copy: what is kept as it is stored would keep the whole file mapped, which counts as memory once read.
        return self._stored(name, shape).to(device=self._device, dtype=self._computed, copy=bool(self._paths))

    def embedding(self, name: str) -> Embedding:
        """States of all tokens. On a CPU they stay in the file, which takes memory for those that are looked up."""
        stored = self._stored(name, (self._config.vocab_size, self._config.hidden))
        if self._device.type != "cpu":
            stored = stored.to(device=self._device, dtype=self._computed)
        elif not self._paths:
            stored = stored.to(self._dtype)
        return Embedding(stored, self._computed)

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
        self._sizes[name] = math.prod(shape)
        # A whole tensor is the file itself, and takes no memory until it is read.
        whole = self._part.size == 1 or mine == slice(None)
        tensor: torch.Tensor = self._files[name].get_tensor(name) if whole else stored[mine]
        return tensor

    def finish(self, ignored: Sequence[str], *, other_models: tuple[str, ...] = ()) -> None:
        """Raise ModelError if tensors were left unread, but for names that end in one of `ignored`.

        Those that begin with one of `other_models` belong to another model in the same files.
        """
        extra = sorted(
            name for name in self._unread if not name.endswith(tuple(ignored)) and not name.startswith(other_models)
        )
        if extra:
            listed = ", ".join(extra[:3]) + (f" and {len(extra) - 3} more" if len(extra) > 3 else "")
            raise ModelError(f"{self._folder}: config.json does not account for {listed}; is model_type right?")

    def fused(self, modules: dict[str, int], width: int, biased: bool, rotated: int = 0) -> Linear:
        """Modules (name: outs) side by side, with biases or without; the first `rotated` are permuted for RoPE."""

        def whole(kind: str, dtype: torch.dtype, *inputs: int) -> torch.Tensor:
            stored = [self._stored(f"{one}.{kind}", (n, *inputs), self._part.of(n)) for one, n in modules.items()]
            room = torch.empty((sum(map(len, stored)), *inputs), dtype=dtype, device=self._device)
            for i, (part, own) in enumerate(zip(torch.split(room, [*map(len, stored)]), stored, strict=True)):
                part.copy_(self._rotate(own) if i < rotated else own)
            return room

        return linear(whole("weight", self._dtype, width), whole("bias", self._computed) if biased else None)

    def summed(self, name: str, shape: tuple[int, int], biased: bool) -> Linear:
        """The product of one module whose outs are the sums of all parts', of which the first brings the bias."""
        weight = self.take(f"{name}.weight", shape, (slice(None), self._part.of(shape[1])))
        bias = self.vector(f"{name}.bias", shape[:1]) if biased else None
        return linear(weight, None if self._part.rank else bias)

    def norm(self, name: str, *, width: int | None = None) -> RmsNorm:
        """A norm over `width` numbers or the residual stream."""
        return RmsNorm(self.vector(name, (width or self._config.hidden,)), self._config.norm_eps)

    def head_norm(self, attention: str) -> RmsNorm:
        """One norm over all query and key heads, each with its weight."""
        dim = self._config.head_dim
        query, key = (self._rotate(self.vector(f"{attention}{part}_norm.weight", (dim,))) for part in "qk")
        heads, kv_heads = (count // self._part.size for count in (self._config.heads, self._config.kv_heads))
        weight = torch.cat([query.expand(heads, dim), key.expand(kv_heads, dim)])
        return RmsNorm(weight, self._config.norm_eps)

    def _rotate(self, rows: torch.Tensor) -> torch.Tensor:
        """Reorder each head's dimensions from (0 .. d/2, d/2 .. d) to (0, d/2, 1, d/2 + 1, ...)."""
        half = self._config.head_dim // 2
        return rows.view(-1, 2, half, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)

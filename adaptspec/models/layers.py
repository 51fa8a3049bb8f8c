"""Products with weights in the forms that their devices take, RMS norm, and rotary position embeddings.

On a CPU the forms are chosen for speed and for equal bits: a token's product must not depend on how many tokens share
it, or drafts would change texts.
"""

from __future__ import annotations

import pkgutil
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from adaptspec.errors import ModelError
from adaptspec.models.config import RopeConfig

WIDENED = 2**20  # weights at a time: 4 MiB in float32, which a CPU's cache holds
# By shape [out, in], dtype and threads: see `PackedLinear.most`.
_MOST_EQUAL: dict[tuple[int, int, torch.dtype, int], int] = {}
# Numbers from which on torch's elementwise operations use several threads. Where it cuts between two threads, the last
# numbers are not computed by vector instructions, with other last bits; and threads wait for each other.
ELEMENTWISE = 2**15
# Tokens that a product of packed weights is padded to. On CPUs without matrix units, which bfloat16 is meant for, one
# token takes 1.3 times as long as four.
LEAST = {torch.float32: 4, torch.bfloat16: 2}
MOST_HALF = 65504.0  # the largest number of float16
_SIZES = (4, 5, 6, 7, 8, 12, 15, 16, 17, 24, 31, 32, 33, 48, 64)  # tokens of products whose bits are compared
ONEDNN: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
FBGEMM = "fbgemm" in torch.backends.quantized.supported_engines


def has_products(dtype: torch.dtype) -> bool:
    """Whether this CPU has fast products of matrices held in `dtype`."""
    if dtype == torch.float16:
        return FBGEMM
    return dtype == torch.float32 or (ONEDNN and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()))


def computed_in(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """What states are computed in where matrices are held in `dtype`: on a CPU float16 is a form of storage alone."""
    return torch.float32 if device.type == "cpu" and dtype == torch.float16 else dtype


class Linear(Protocol):
    """x weight + bias, in one of the forms below."""

    @property
    def width(self) -> int:
        """Numbers that it makes of a token."""

    def __call__(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """[N, out] of `x` [N, in], into `out` if given."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """The same in float32, whatever `hidden` is in."""


def linear(weight: torch.Tensor, bias: torch.Tensor | None = None, *, shared: bool = False) -> Linear:
    """The product with `weight` [out, in] in the form for its device and dtype. `shared`: it may not be laid out anew.

    Raises ModelError: numbers do not fit float16.
    """
    if weight.device.type == "cpu" and not shared:
        if weight.dtype == torch.float16:
            return HalfLinear.of(weight, bias) if FBGEMM else linear(weight.float(), bias)
        if ONEDNN and has_products(weight.dtype):
            return PackedLinear.of(weight, bias)
    return DenseLinear(weight.t() if shared else weight.t().contiguous(), bias)


@dataclass(frozen=True, slots=True)
class DenseLinear:
    """A plain matrix: for GPUs, and for CPUs without the libraries of the other forms."""

    weight: torch.Tensor  # [in, out]
    bias: torch.Tensor | None

    @property
    def width(self) -> int:
        return self.weight.shape[1]

    def __call__(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        weight = self.weight
        return torch.mm(x, weight, out=out) if self.bias is None else torch.addmm(self.bias, x, weight, out=out)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self(hidden) if hidden.dtype == torch.float32 else float32_logits(hidden, self.weight)

    def dense(self) -> torch.Tensor:
        """The weight [out, in]; it may share memory."""
        return self.weight.t()


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """A matrix in oneDNN's blocks, float32 or bfloat16: 8 tokens cost little more than one.

    oneDNN has other kernels for a single token, and from some number of tokens on: fewer than `LEAST` are padded, and
    more than `most` are cut. In between a token's bits are the same, which is tried for every size of matrix.
    """

    packed: torch.Tensor
    bias: torch.Tensor | None
    most: int

    @staticmethod
    def of(weight: torch.Tensor, bias: torch.Tensor | None = None) -> PackedLinear:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())
        kind = (weight.shape[0], weight.shape[1], weight.dtype, torch.get_num_threads())
        most = _MOST_EQUAL.get(kind)
        if most is None:
            most = _MOST_EQUAL[kind] = _most_equal(PackedLinear(packed, None, max(_SIZES)), weight.shape[1])
        return PackedLinear(packed, bias, most)

    @property
    def width(self) -> int:
        return self.packed.shape[0]

    def __call__(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        count = len(x)
        least = LEAST[x.dtype]
        if count == 0:
            result = x.new_empty(0, self.width)
        elif count < least:
            result = self._product(F.pad(x, (0, 0, 0, least - count)))[:count]
        elif count <= self.most:
            result = self._product(x)
        else:
            result = torch.cat([self(part) for part in torch.split(x, self.most)])
        return result if out is None else out.copy_(result)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self(hidden).float()

    def dense(self) -> torch.Tensor:
        """The weight [out, in]."""
        return self.packed.to_dense()

    def _product(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
        return result


def _most_equal(product: PackedLinear, inputs: int) -> int:
    """The most tokens whose products have the bits of products of four."""
    x = torch.randn(max(_SIZES), inputs, generator=torch.Generator().manual_seed(0)).to(product.packed.dtype)
    fours = torch.cat([product(part) for part in torch.split(x, 4)])
    for before, size in pairwise(_SIZES):
        if not torch.equal(product(x[:size]), fours[:size]):
            return before
    return max(_SIZES)


@dataclass(frozen=True, slots=True)
class HalfLinear:
    """A matrix held in float16 by FBGEMM; tokens and results are float32.

    A product reads half the bytes of float32. Its kernels add the terms of each number one after another, so that its
    bits are the same for any number of tokens. What bfloat16 holds float16 holds, too, but for numbers below 6e-5:
    these are rounded to multiples of 6e-8.
    """

    packed: Any  # a torch.ScriptObject
    bias: torch.Tensor | None
    shape: tuple[int, int]

    @staticmethod
    def of(weight: torch.Tensor, bias: torch.Tensor | None = None) -> HalfLinear:
        if not torch.isfinite(weight).all():
            raise ModelError(
                f"a weight is larger than {MOST_HALF:g}, the largest number of float16; use --dtype float32"
            )
        packed = torch.ops.quantized.linear_prepack_fp16(weight.float(), bias)
        return HalfLinear(packed, bias, (weight.shape[0], weight.shape[1]))

    @property
    def width(self) -> int:
        return self.shape[0]

    def __call__(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        product = torch.ops.quantized.linear_dynamic_fp16
        result = product(x, self.packed) if len(x) else x.new_empty(0, self.width)
        return result if out is None else out.copy_(result)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self(hidden.float())

    def dense(self) -> torch.Tensor:
        """The weight [out, in]."""
        weight: torch.Tensor = torch.ops.quantized.linear_unpack_fp16(self.packed)[0]
        return weight


def head_linear(weight: torch.Tensor, *, shared: bool = False) -> Linear:
    """The product with `weight` [vocab, in] that logits are made by, with results in float32.

    oneDNN rounds products of bfloat16 to bfloat16, where many logits are equal: there the weight is held in float16.
    """
    if weight.device.type == "cpu" and weight.dtype == torch.bfloat16 and not shared:
        return linear(weight.to(torch.float16) if FBGEMM else weight.float())
    return linear(weight, shared=shared)


def float32_logits(hidden: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
    """`hidden` [N, dim] times `head` [dim, vocab] in float32 where both are in 16 bits.

    On a CPU, where torch has no such product of 16-bit numbers, the head is widened piece by piece, which takes least
    time if it is the transpose of a contiguous matrix.
    """
    if hidden.device.type == "cuda":
        return torch.mm(hidden, head, out_dtype=torch.float32)
    wide = hidden.float()
    pieces = torch.split(head, max(1, WIDENED // head.shape[0]), dim=1)
    return torch.cat([torch.mm(wide, piece.float()) for piece in pieces], dim=1)


class Float32Head(torch.nn.Module):
    """Stands in for a model's own head [vocab, dim]; its logits are float32."""

    def __init__(self, head: torch.nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = head.weight, head.bias

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [..., vocab] of `hidden` [..., dim]."""
        logits = float32_logits(hidden.flatten(0, -2), self.weight.t())
        if self.bias is not None:
            logits += self.bias
        return logits.view(*hidden.shape[:-1], -1)


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """A norm over the last dimension; `weight` is [dim], or [heads, dim] for tensors [..., heads, dim]."""

    weight: torch.Tensor
    eps: float

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """`x` [..., dim], normalised."""
        shape = self.weight.shape[-1:]
        if self.weight.ndim == 1:
            return F.rms_norm(x, shape, self.weight, self.eps)
        return F.rms_norm(x, shape, None, self.eps) * self.weight


@dataclass(frozen=True, slots=True)
class Embedding:
    """States of tokens: `table` [vocab, hidden] as it is stored, perhaps in a mapped file, and what it is given in."""

    table: torch.Tensor
    dtype: torch.dtype

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        """[N, hidden] of `tokens` [N]."""
        return self.table.index_select(0, tokens).to(self.dtype)

    @property
    def device(self) -> torch.device:
        return self.table.device


def silu_product(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up [N, n] of both side by side [N, 2 n]."""
    parts = (part.chunk(2, 1) for part in few_rows(gate_up))
    products = [F.silu(gate).mul_(up) for gate, up in parts]
    return products[0] if len(products) == 1 else torch.cat(products)


def few_rows(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Parts of `x` [N, ...] for elementwise operations: on a CPU so small that one thread computes each."""
    if not x.is_cpu or x.numel() <= ELEMENTWISE:
        return (x,)
    return torch.split(x, max(1, ELEMENTWISE // x[0].numel()))


def rotations(rope: RopeConfig, head_dim: int, length: int) -> torch.Tensor:
    """Rotations of positions 0 to `length`, complex64 [length, head_dim / 2], scaled by the attention factor.

    They are complex numbers: dimension pairs (i, i + head_dim / 2) are stored next to each other, so that one complex
    product rotates queries and keys. Weights are permuted to match; attention does not depend on the order.
    """
    frequencies, factor = inverse_frequencies(rope, head_dim)
    angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies)
    return torch.polar(torch.full_like(angles, factor), angles)


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> tuple[torch.Tensor, float]:
    """Radians per position, float32 [head_dim / 2], and the factor that queries and keys are scaled by."""
    if rope.scaling == "default":
        return 1.0 / (rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)), 1.0
    settings = {**rope.parameters, "rope_type": rope.scaling, "rope_theta": rope.theta, "partial_rotary_factor": 1.0}
    if rope.scaling != "linear":
        settings["original_max_position_embeddings"] = rope.original_context
    if rope.scaling == "yarn":
        settings.setdefault("factor", rope.context / rope.original_context)
    try:
        # Looked up here: importing it takes a second and 80 MB, and most models scale nothing.
        config = pkgutil.resolve_name("transformers:LlamaConfig")(
            head_dim=head_dim, max_position_embeddings=rope.context, rope_parameters=settings
        )
        frequencies, factor = ROPE_INIT_FUNCTIONS[rope.scaling](config, torch.device("cpu"))
    except KeyError as missing:
        raise ModelError(f"config.json: {missing.args[0]}") from None
    return frequencies, float(factor)

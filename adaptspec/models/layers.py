"""RMS norm in the form that is fastest for its device and dtype, the head with logits in float32, and RoPE."""

from __future__ import annotations

import math
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from adaptspec.errors import ModelError
from adaptspec.models.config import RopeConfig

WIDENED = 2**20  # weights at a time: 4 MiB in float32, which a CPU's cache holds
# Multiplications from which on a product of several tokens gains by oneDNN, and weights from which on that of one does.
SMALL, LARGE = 2**19, 2**21
ONEDNN: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
# 16-bit numbers that this CPU multiplies; where it does not, torch takes up to 300 times as long as in float32.
MULTIPLIED = {
    torch.bfloat16: ONEDNN and torch.ops.mkldnn._is_mkldnn_bf16_supported(),
    torch.float16: ONEDNN and torch.ops.mkldnn._is_mkldnn_fp16_supported(),
}

Norm = Callable[[torch.Tensor], torch.Tensor]


def rms_norm(weight: torch.Tensor, eps: float) -> Norm:
    """A norm over the last dimension; `weight` is [dim], or [heads, dim] for tensors [..., heads, dim]."""
    if weight.device.type == "cpu" and weight.dtype == torch.float32:
        return LengthNorm.of(weight.shape[-1], eps, weight)
    return RmsNorm(weight, eps)


def rms_norm_into(weight: torch.Tensor, eps: float, matrix: torch.Tensor) -> Norm:
    """A norm [N, dim] whose product with `matrix` [dim, out] is wanted; where it pays, the weight moves into `matrix`.

    `matrix` is then changed in place: it must belong to this norm alone.
    """
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        return rms_norm(weight, eps)
    matrix.mul_((weight * math.sqrt(len(weight))).unsqueeze(1))
    return LengthNorm.of(len(weight), eps, None)


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """As it is usually written; `weight` [dim], or [heads, dim] for tensors [..., heads, dim]."""

    weight: torch.Tensor
    eps: float

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """`x` [..., dim], normalised."""
        shape = self.weight.shape[-1:]
        if self.weight.ndim == 1:
            return F.rms_norm(x, shape, self.weight, self.eps)
        return F.rms_norm(x, shape, None, self.eps) * self.weight


@dataclass(frozen=True, slots=True)
class LengthNorm:
    """x / hypot(|x|, sqrt(dim eps)) * (sqrt(dim) weight): the same value in half the operations of the usual form.

    Float32 only: the length of a 16-bit vector may not fit 16 bits. `square` is dim eps; `scale` is sqrt(dim) weight,
    None where the matrix behind the norm has taken it over.
    """

    square: float
    floor: torch.Tensor
    scale: torch.Tensor | None

    @staticmethod
    def of(dim: int, eps: float, weight: torch.Tensor | None) -> LengthNorm:
        scale = None if weight is None else weight * math.sqrt(dim)
        return LengthNorm(dim * eps, torch.tensor(math.sqrt(dim * eps)), scale)

    def plain(self, dim: int) -> RmsNorm:
        """The same as it is usually written."""
        scale = torch.ones(dim) if self.scale is None else self.scale
        return RmsNorm(scale / math.sqrt(dim), self.square / dim)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """`x` [..., dim], normalised."""
        length: torch.Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        normed = x / length.hypot_(self.floor)
        return normed if self.scale is None else normed.mul_(self.scale)


@dataclass(frozen=True, slots=True)
class Linear:
    """x weight + bias, by whichever library is faster for the size of the product.

    oneDNN takes half the time of torch's own BLAS on an AMD processor, and with a matrix laid out in its blocks two to
    eight tokens cost little more than one. But a call takes some 12 us more, which a small product does not earn back.
    """

    weight: torch.Tensor | None  # [in, out]; None where every product is oneDNN's
    blocks: torch.Tensor | None  # [out, in] as oneDNN reads it; None where it has no part
    bias: torch.Tensor | None  # [out]

    @staticmethod
    def of(weight: torch.Tensor, bias: torch.Tensor | None = None, *, copied: bool = True) -> Linear:
        """`weight` [in, out], of which only a small one is kept in both forms.

        Where it may not be `copied`, it is the transpose of a contiguous matrix, which oneDNN reads as it is.
        """
        if not (ONEDNN and weight.is_cpu and weight.dtype == torch.float32):
            return Linear(weight, None, bias)
        stored = weight.t()
        blocks = torch.ops.mkldnn._reorder_linear_weight(stored.contiguous()) if copied else stored
        return Linear(weight if weight.numel() < LARGE else None, blocks, bias)

    @property
    def width(self) -> int:
        """Numbers that it makes of a token."""
        stored = self.blocks if self.weight is None else self.weight.t()
        assert stored is not None
        return stored.shape[0]

    def __call__(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """[N, out] of `x` [N, in], into `out` if given."""
        weight = self.weight
        if weight is None or self._onednn_pays(x):
            result = self._onednn(x)
            return result if out is None else out.copy_(result)
        if weight.is_cpu and not MULTIPLIED.get(x.dtype, True):
            result = self._widened(x, weight)
            return result if out is None else out.copy_(result)
        return torch.mm(x, weight, out=out) if self.bias is None else torch.addmm(self.bias, x, weight, out=out)

    def add_to(self, total: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """The same, added to `total` [N, out] in place."""
        weight = self.weight
        if weight is None or self._onednn_pays(x):
            return total.add_(self._onednn(x))
        if weight.is_cpu and not MULTIPLIED.get(x.dtype, True):
            return total.add_(self._widened(x, weight))
        total = total.addmm_(x, weight)
        return total if self.bias is None else total.add_(self.bias)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[N, out] in float32, whatever `hidden` [N, in] is in."""
        if hidden.dtype == torch.float32:
            return self(hidden)
        assert self.weight is not None
        return float32_logits(hidden, self.weight)

    def _onednn_pays(self, x: torch.Tensor) -> bool:
        return x.shape[0] > 1 and self.blocks is not None and x.numel() * self.blocks.shape[0] >= SMALL

    def _widened(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        result = float32_logits(x, weight)
        return (result if self.bias is None else result.add_(self.bias)).to(x.dtype)

    def _onednn(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self.blocks, self.bias, "none", [], "")
        return result


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

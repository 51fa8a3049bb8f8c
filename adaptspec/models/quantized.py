"""A model's own weights in 8 or 4 bits, to draft for it: drafts may be wrong, and take fewer bytes to read.

The products are torch's own kernels of packed weights, in bfloat16. torchao widens 8-bit weights before each product
unless that is compiled: on a CPU it took twice the time of float32, where these take a third of bfloat16's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from adaptspec.errors import ConfigError
from adaptspec.models.layers import DenseLinear, HalfLinear, Linear, PackedLinear
from adaptspec.models.weights import DecoderWeights, LayerWeights

KINDS = ("int8", "int4")
GROUPS = (128, 64, 32)  # inputs that share a scale in 4 bits; in 8 all do
OUTPUTS = 16  # that kernels take together


@dataclass(frozen=True, slots=True)
class QuantizedLinear:
    """x weight + bias with a weight in few bits, symmetric around 0: int8 [out, in], or 4 bits as kernels read them.

    `scales` bfloat16 [out]; for 4 bits [in / group, out, 2], the second of each two being 0.
    """

    packed: torch.Tensor
    scales: torch.Tensor
    group: int  # 0: 8 bits
    bias: torch.Tensor | None

    @staticmethod
    def of_linear(linear: Linear, kind: str) -> Linear:
        """The same in `kind`; itself where no kernel takes its shape."""
        assert isinstance(linear, DenseLinear | PackedLinear | HalfLinear)
        weight = linear.dense().float().contiguous()
        outputs, inputs = weight.shape
        group = next((size for size in GROUPS if inputs % size == 0), 0)
        if not group or outputs % OUTPUTS:
            return linear
        parts = weight.view(outputs, -1, group if kind == "int4" else inputs)
        most = 7 if kind == "int4" else 127
        scales = (parts.abs().amax(2) / most).clamp(min=torch.finfo(torch.float32).tiny)
        whole = (parts / scales.unsqueeze(2)).round().view(outputs, inputs)
        if kind == "int8":
            return QuantizedLinear(whole.to(torch.int8), scales[:, 0].bfloat16(), 0, linear.bias)
        both = torch.stack((scales, torch.zeros_like(scales)), 2).transpose(0, 1).contiguous().bfloat16()
        return QuantizedLinear(_packed(whole.int() + 8), both, group, linear.bias)

    @property
    def width(self) -> int:
        return self.scales.shape[1 if self.group else 0]

    def __call__(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """[N, out] of `x` [N, in], into `out` if given."""
        # On a CPU always a copy: its kernels crash on memory that is not aligned, such as rows of a mapped file.
        narrow = x.to(torch.bfloat16, copy=x.is_cpu, memory_format=torch.contiguous_format)
        if not self.group:
            result = torch.ops.aten._weight_int8pack_mm(narrow, self.packed, self.scales)
        elif x.is_cpu:
            result = torch.ops.aten._weight_int4pack_mm_for_cpu(narrow, self.packed, self.group, self.scales)
        else:
            result = torch.ops.aten._weight_int4pack_mm(narrow, self.packed, self.group, self.scales)
        wide: torch.Tensor = result.to(x.dtype)
        if self.bias is not None:
            wide += self.bias
        return wide if out is None else out.copy_(wide)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self(hidden).float()


def _packed(numbers: torch.Tensor) -> torch.Tensor:
    """0 to 15, int32 [out, in], as the kernel of their device reads them."""
    packed: torch.Tensor
    if numbers.is_cpu:
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(numbers, 1)
    else:
        pairs = (numbers[:, ::2] << 4 | numbers[:, 1::2]).to(torch.uint8)
        tiles = next(tiles for tiles in (8, 4, 2) if numbers.shape[1] % (16 * tiles) == 0)
        packed = torch.ops.aten._convert_weight_to_int4pack(pairs, tiles)
    return packed


def quantized_weights(weights: DecoderWeights, kind: str) -> DecoderWeights:
    """The same with layers in fewer bits; embedding, norms and head are shared. ConfigError: it cannot be done here."""
    if kind not in KINDS:
        raise ConfigError(f"--draft quantized:{kind}: there are quantized:{', quantized:'.join(KINDS)}")
    try:
        layers = tuple(_quantized_layer(layer, kind) for layer in weights.layers)
        layers[0].qkv(weights.embedding(torch.zeros(1, dtype=torch.int64, device=weights.embedding.device)))
    except (NotImplementedError, RuntimeError, AttributeError) as error:
        device = weights.embedding.device
        raise ConfigError(
            f"--draft quantized:{kind}: this torch has no such product on {device.type} ({str(error)[:80]}); "
            "use another kind, or a draft model"
        ) from error
    return replace(weights, layers=layers)


def _quantized_layer(layer: LayerWeights, kind: str) -> LayerWeights:
    return replace(
        layer,
        qkv=QuantizedLinear.of_linear(layer.qkv, kind),
        output=QuantizedLinear.of_linear(layer.output, kind),
        gate_up=QuantizedLinear.of_linear(layer.gate_up, kind),
        down=QuantizedLinear.of_linear(layer.down, kind),
    )

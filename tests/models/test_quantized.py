"""Drafts of a model by itself, in fewer bits: near enough to be accepted, and never felt in a text."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from adaptspec.config import EngineConfig
from adaptspec.engine.build import build
from adaptspec.errors import ConfigError
from adaptspec.models.layers import linear as linear_of
from adaptspec.models.quantized import QuantizedLinear

CONFIG = EngineConfig(policy=("static-3", "off"), device="cpu", max_model_len=128)


@pytest.mark.parametrize(("kind", "most"), [("int8", 0.01), ("int4", 0.15)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("biased", [False, True])
def test_products_are_near(kind: str, most: float, dtype: torch.dtype, *, biased: bool) -> None:
    torch.manual_seed(0)
    x, weight = (torch.randn(shape).to(dtype) for shape in ((5, 192), (64, 192)))
    linear = linear_of(weight, torch.randn(64).to(dtype) if biased else None)
    found, exact = QuantizedLinear.of_linear(linear, kind), linear(x).float()
    assert isinstance(found, QuantizedLinear)
    assert (found(x).float() - exact).norm() < most * exact.norm()
    assert torch.equal(found(x, torch.empty(5, 64, dtype=dtype)), found(x))


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_numbers_need_not_be_aligned_in_memory(kind: str) -> None:
    """The 8-bit kernel ends the process on unaligned memory."""
    memory = torch.randn(8 + 5 * 192).bfloat16()
    linear = QuantizedLinear.of_linear(linear_of(torch.randn(64, 192).bfloat16()), kind)
    for first in range(8):
        x = memory[first : first + 5 * 192].view(5, 192)
        assert torch.equal(linear(x), linear(x.clone()))


def test_a_shape_that_no_kernel_takes_stays_as_it_is() -> None:
    linear = linear_of(torch.randn(40, 192))
    assert QuantizedLinear.of_linear(linear, "int4") is linear


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="quantized:int8, quantized:int4"):
        build(replace(CONFIG, draft="quantized:int3"))

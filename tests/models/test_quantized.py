"""Drafts of a model by itself, in fewer bits: near enough to be accepted, and never felt in a text."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from adaptspec.control.cost import CostTable
from adaptspec.engine import assembly, model_set
from adaptspec.engine.assembly import build
from adaptspec.engine.engine_config import EngineConfig
from adaptspec.errors import ConfigError
from adaptspec.gpu.device_decoder import device_decoder
from adaptspec.models.layers import Linear
from adaptspec.models.quantized import QuantizedLinear
from adaptspec.request import Request, SamplingParams
from tests.engine.conftest import run
from tests.engine.policies import COSTS

CONFIG = EngineConfig(policies=("static-3", "off"), device="cpu", context=128)


@pytest.mark.parametrize(("kind", "most"), [("int8", 0.01), ("int4", 0.15)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("biased", [False, True])
def test_products_are_near(kind: str, most: float, dtype: torch.dtype, *, biased: bool) -> None:
    torch.manual_seed(0)
    x, weight, total = (torch.randn(shape).to(dtype) for shape in ((5, 192), (192, 64), (5, 64)))
    linear = Linear.of(weight, torch.randn(64).to(dtype) if biased else None)
    found, exact = QuantizedLinear.of_linear(linear, kind), linear(x).float()
    assert isinstance(found, QuantizedLinear)
    assert (found(x).float() - exact).norm() < most * exact.norm()
    assert torch.equal(found(x, torch.empty(5, 64, dtype=dtype)), found(x))
    assert torch.equal(found.add_to(total.clone(), x), total + found(x))


def test_a_shape_that_no_kernel_takes_stays_as_it_is() -> None:
    linear = Linear.of(torch.randn(192, 40))
    assert QuantizedLinear.of_linear(linear, "int4") is linear


@pytest.mark.parametrize(("kind", "least"), [("int8", 0.9), ("int4", 0.6)])
def test_texts_are_those_of_the_model_alone(kind: str, least: float, monkeypatch: pytest.MonkeyPatch) -> None:
    check_texts(kind, least, "float32", 24, monkeypatch)


@pytest.mark.whole
def test_texts_are_those_of_the_model_alone_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few tokens: on a CPU its passes take a quarter of a second."""
    monkeypatch.setattr(model_set, "decoder", device_decoder)
    check_texts("int4", 0.6, "bfloat16", 8, monkeypatch)


def check_texts(kind: str, least: float, dtype: str, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembly, "warm_up", lambda *_: None)
    built = build(replace(CONFIG, draft=f"quantized:{kind}", dtype=dtype), costs=lambda *_: CostTable(COSTS))
    prompt = tuple(built.tokenizer.encode("Once upon a time, in a village by the sea,"))
    warm = [SamplingParams(length, 0.8 * (i % 2), seed=i, ignore_eos=True) for i in range(4)]
    drafted, plain = (
        run(built.core, [replace(Request(f"{i}", prompt, one), speculation=asked) for i, one in enumerate(warm)])
        for asked in (replace(Request("", prompt).speculation, policy=name) for name in ("static-3", "off"))
    )
    for name, one in drafted.items():
        assert one.tokens == plain[name].tokens
    accepted, tried = (sum(getattr(one.stats, name) for one in drafted.values()) for name in ("accepted", "drafted"))
    assert accepted > least * tried > 0


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="quantized:int8, quantized:int4"):
        build(replace(CONFIG, draft="quantized:int3"))

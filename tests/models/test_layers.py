"""Norms and heads: the quick forms are the plain ones, and logits are float32. RoPE equals transformers'."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, Gemma2Config, GPT2Config, LlamaConfig, PhiConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from adaptspec.errors import ModelError
from adaptspec.models import layers
from adaptspec.models.config import read_rope
from adaptspec.models.layers import (
    Linear,
    inverse_frequencies,
    rms_norm,
    rms_norm_into,
)
from tests.conftest import MakeModel
from tests.models.packing import feed, load_runner, random_tokens


@pytest.mark.parametrize("scale", [0.0, 1e-6, 1.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norms_equal_torchs(scale: float, dtype: torch.dtype) -> None:
    """Where eps matters (tiny vectors) as well as where it does not."""
    torch.manual_seed(0)
    x, weight = (torch.randn(3, 5, 48) * scale).to(dtype), torch.randn(48).to(dtype)
    kept = x.clone()
    torch.testing.assert_close(rms_norm(weight, 1e-6)(x), F.rms_norm(x, (48,), weight, 1e-6))
    assert torch.equal(x, kept), "the residual stream must not change"


@pytest.mark.parametrize("scale", [0.0, 1e-6, 1.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_norm_and_the_matrix_behind_it_may_share_a_weight(scale: float, dtype: torch.dtype) -> None:
    """Wherever the weight went, the product is that of the plain norm with the plain matrix."""
    torch.manual_seed(0)
    x, weight, matrix = (torch.randn(5, 48) * scale).to(dtype), torch.randn(48).to(dtype), torch.randn(48, 7).to(dtype)
    expected = F.rms_norm(x, (48,), weight, 1e-6) @ matrix
    torch.testing.assert_close(rms_norm_into(weight, 1e-6, matrix)(x) @ matrix, expected)


HALVES = (torch.bfloat16, torch.float16)
SMALL = {
    "vocab_size": 260,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "initializer_range": 0.2,
    "eos_token_id": 1,
}


def drawn(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """States [5, 48] and a head [48, 300]."""
    chance = torch.Generator().manual_seed(0)
    return torch.randn(5, 48, generator=chance).to(dtype), torch.randn(300, 48, generator=chance).to(dtype).t()


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("biased", [False, True])
def test_cpus_that_multiply_no_16_bit_numbers_widen_them(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, biased: bool
) -> None:
    """Every form of a product is float32's, rounded once (and once more where it is added to something)."""
    monkeypatch.setattr(layers, "MULTIPLIED", dict.fromkeys(HALVES, False))
    states, weights = drawn(dtype)
    bias = weights[0].clone() if biased else None
    linear = Linear.of(weights, bias)
    exact = (states.float() @ weights.float() + (bias.float() if bias is not None else 0)).to(dtype)
    out = torch.empty_like(exact)
    assert linear(states).equal(exact)
    assert linear(states, out) is out
    assert out.equal(exact)
    assert linear.add_to(torch.ones_like(exact), states).equal(exact + 1)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("tied", [True, False])
def test_the_decoder_rounds_no_logits(make_model: MakeModel, dtype: str, tied: bool) -> None:
    runner = load_runner(str(make_model("llama", tie_word_embeddings=tied)), device="cpu", dtype=dtype, max_rows=1)
    assert_not_rounded(feed(runner, 0, random_tokens(12)), dtype)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    "config",
    [
        GPT2Config(**SMALL),
        PhiConfig(intermediate_size=32, **SMALL),
        Gemma2Config(intermediate_size=32, num_key_value_heads=1, head_dim=8, **SMALL),
    ],
    ids=["tied", "with a bias", "soft-capped behind the head"],
)
def test_transformers_rounds_no_logits(
    tmp_path: Path, dtype: str, config: GPT2Config | PhiConfig | Gemma2Config
) -> None:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    runner = load_runner(str(tmp_path), device="cpu", dtype=dtype, max_rows=1)
    assert_not_rounded(feed(runner, 0, random_tokens(12)), dtype)


def assert_not_rounded(logits: torch.Tensor, dtype: str) -> None:
    """Numbers that 16 bits happen to hold are rare among those that 32 bits do."""
    assert logits.dtype == torch.float32
    assert (logits == logits.to(getattr(torch, dtype)).float()).float().mean() < 0.02


BASE: dict[str, Any] = {"max_position_embeddings": 2048, "rope_theta": 50_000.0}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SCALINGS: list[dict[str, Any]] = [
    {"type": "linear", "factor": 3.0},
    LLAMA3 | {"original_max_position_embeddings": 256},
    LLAMA3,
    {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512},
    {"rope_type": "yarn", "factor": 4.0, "beta_fast": 16, "beta_slow": 2, "truncate": False},
    {"rope_type": "yarn", "factor": 8.0, "attention_factor": 0.7, "original_max_position_embeddings": 256},
    {"rope_type": "yarn", "factor": 8.0, "mscale": 0.8, "mscale_all_dim": 1.2, "original_max_position_embeddings": 256},
    {"rope_type": "yarn", "factor": 1.0},
]


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("style", ["rope_scaling", "rope_parameters"])
def test_frequencies_equal_transformers(scaling: dict[str, Any], style: str) -> None:
    raw = BASE | {style: scaling}
    if style == "rope_parameters":
        raw = {"max_position_embeddings": 2048, style: scaling | {"rope_theta": 50_000.0}}
    theirs = LlamaConfig(hidden_size=128, num_attention_heads=4, **raw)
    kind = scaling.get("rope_type") or scaling["type"]
    expected, factor = ROPE_INIT_FUNCTIONS[kind](theirs, torch.device("cpu"))
    got, own_factor = inverse_frequencies(read_rope(raw), 32)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=0.0)
    assert own_factor == pytest.approx(factor)


@pytest.mark.parametrize("kind", ["dynamic", "longrope", "su"])
def test_scalings_that_cannot_be_exact_are_refused(kind: str) -> None:
    """Dynamic scalings rotate old tokens anew as text grows: a cache of them would be wrong."""
    with pytest.raises(ModelError, match=kind):
        read_rope(BASE | {"rope_scaling": {"rope_type": kind, "factor": 2.0}})


@pytest.mark.parametrize("copied", [True, False], ids=["copied", "as stored"])
@pytest.mark.parametrize("width", [256, 2304], ids=["kept in both forms", "in blocks only"])
@pytest.mark.parametrize("rows", [1, 2, 40])
def test_products_of_all_sizes_are_the_same_product(rows: int, width: int, copied: bool) -> None:
    """Whichever library multiplies: with and without bias, alone, into memory, and onto a sum."""
    torch.manual_seed(0)
    x, bias, total = torch.randn(rows, width), torch.randn(1024), torch.randn(rows, 1024)
    matrix = torch.randn(1024, width).t()
    exact = x.double() @ matrix.double()
    out = torch.empty(rows, 1024)
    for own, more in ((None, 0), (bias, bias)):
        linear = layers.Linear.of(matrix, own, copied=copied)
        assert (linear.weight is None) == (matrix.numel() >= layers.LARGE)
        tolerance = {"atol": 1e-3, "rtol": 0.0, "check_dtype": False}
        torch.testing.assert_close(linear(x), exact + more, **tolerance)
        torch.testing.assert_close(linear.logits(x), exact + more, **tolerance)
        assert linear(x, out=out) is out
        torch.testing.assert_close(out, exact + more, **tolerance)
        torch.testing.assert_close(linear.add_to(total.clone(), x), exact + more + total, **tolerance)

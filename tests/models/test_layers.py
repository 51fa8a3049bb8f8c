"""Norms and heads: the quick forms are the plain ones, and logits are float32."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, Gemma2Config, GPT2Config, PhiConfig

from adaptspec.models import layers
from adaptspec.models.layers import Float32Head, float32_logits, rms_norm, rms_norm_into
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_head_may_have_its_own_weight(dtype: torch.dtype) -> None:
    x, weight = torch.randn(3, 4, 16).to(dtype), torch.randn(4, 16).to(dtype)
    got = rms_norm(weight, 1e-5)(x)
    for head in range(4):
        expected = F.rms_norm(x[:, head], (16,), weight[head], 1e-5)
        torch.testing.assert_close(got[:, head], expected, atol=1e-5 if dtype == torch.float32 else 0.05, rtol=0.02)


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
@pytest.mark.parametrize("widened", [1, 48 * 64, 2**20], ids=["a column at a time", "uneven pieces", "whole"])
def test_products_of_16_bit_numbers_keep_what_float32_holds(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, widened: int
) -> None:
    """Against sums in float64, a hundred times closer than the same logits rounded."""
    monkeypatch.setattr(layers, "WIDENED", widened)
    states, weights = drawn(dtype)
    exact = states.double() @ weights.double()
    logits = float32_logits(states, weights)
    assert logits.dtype == torch.float32
    assert (logits - exact).norm() * 100 < (exact.to(dtype) - exact).norm()


def test_products_of_float32_are_plain_products() -> None:
    states, weights = drawn(torch.float32)
    assert torch.equal(float32_logits(states, weights), torch.mm(states, weights))


@pytest.mark.parametrize("dtype", HALVES)
def test_a_head_with_a_bias_and_states_of_any_shape(dtype: torch.dtype) -> None:
    linear = torch.nn.Linear(48, 300, dtype=dtype)
    states = drawn(dtype)[0].view(1, 5, 48)
    logits = Float32Head(linear)(states)
    assert logits.dtype == torch.float32
    exact = states.double() @ linear.weight.double().t() + linear.bias.double()
    torch.testing.assert_close(logits, exact.float(), atol=1e-5, rtol=1e-5)


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

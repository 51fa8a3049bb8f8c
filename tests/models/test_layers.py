"""Products are the plain ones, with equal bits in any company; logits are float32; RoPE is that of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, Gemma2Config, GPT2Config, LlamaConfig, PhiConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from adaptspec.errors import ModelError
from adaptspec.models.config import read_rope
from adaptspec.models.layers import computed_in, has_products, inverse_frequencies, linear, silu_product
from tests.conftest import MakeModel
from tests.models.packing import feed, load_runner, random_tokens

SMALL = {
    "vocab_size": 260,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "initializer_range": 0.2,
    "eos_token_id": 1,
}


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


FORMS = [dtype for dtype in (torch.float32, torch.bfloat16, torch.float16) if has_products(dtype)]


@pytest.mark.parametrize("dtype", FORMS, ids=str)
@pytest.mark.parametrize("biased", [False, True], ids=["", "biased"])
@pytest.mark.parametrize("rows", [0, 1, 2, 3, 40, 200])
def test_products_of_all_sizes_are_the_same_product(rows: int, dtype: torch.dtype, *, biased: bool) -> None:
    """In every form of a CPU, into memory or not; the sizes are on both sides of those that are padded and cut."""
    torch.manual_seed(0)
    states = computed_in(dtype, torch.device("cpu"))
    x, weight = torch.randn(rows, 1100).to(states), torch.randn(96, 1100).to(dtype)
    bias = torch.randn(96).to(states) if biased else None
    exact = x.double() @ weight.double().t() + (0 if bias is None else bias.double())
    product, out = linear(weight, bias), torch.empty(rows, 96, dtype=states)
    assert product.width == 96
    tolerance = {"atol": 0.6 if dtype == torch.bfloat16 else 1e-3, "rtol": 0.0, "check_dtype": False}
    torch.testing.assert_close(product(x), exact, **tolerance)
    torch.testing.assert_close(product.logits(x), exact, **tolerance)
    assert product.logits(x).dtype == torch.float32
    assert product(x, out=out) is out
    assert torch.equal(out, product(x))


@pytest.mark.parametrize("dtype", FORMS, ids=str)
@pytest.mark.parametrize("inputs", [48, 576, 1536, 2048])
def test_a_token_has_the_same_product_beside_any_others(inputs: int, dtype: torch.dtype) -> None:
    """Bit for bit: texts are to be the same with and without speculation, in every batch."""
    torch.manual_seed(0)
    x = torch.randn(130, inputs).to(computed_in(dtype, torch.device("cpu")))
    product = linear(torch.randn(320, inputs).to(dtype))
    alone = torch.cat([product(part) for part in torch.split(x, 1)])
    for size in (2, 3, 4, 5, 8, 13, 16, 31, 33, 64, 130):
        assert torch.equal(torch.cat([product(part) for part in torch.split(x, size)]), alone), size


@pytest.mark.skipif(not has_products(torch.float16), reason="no products of float16 on this CPU")
def test_numbers_that_float16_does_not_hold_are_refused() -> None:
    with pytest.raises(ModelError, match="largest number of float16; use --dtype float32"):
        linear(torch.full((4, 4), 1e5).to(torch.float16))


@pytest.mark.parametrize("seed", range(4))
def test_elementwise_steps_of_many_rows_are_those_of_each(seed: int) -> None:
    """Bit for bit, also where torch would share the rows among threads, and cut some of them in two: of a cut row some
    numbers are computed by another instruction, and one in 25 of those has another last bit.
    """
    torch.manual_seed(seed)
    gate_up = torch.randn(1001, 2 * 1037)
    alone = torch.cat([silu_product(row) for row in gate_up.split(1)])
    torch.set_num_threads(8)
    try:
        assert torch.equal(silu_product(gate_up), alone)
    finally:
        torch.set_num_threads(1)
    gate, up = gate_up.chunk(2, 1)
    torch.testing.assert_close(alone, F.silu(gate) * up)

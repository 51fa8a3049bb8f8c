"""The lean decoder against transformers: packed, cached, rolled back; and what a pass plans once."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from adaptspec.errors import EngineError
from adaptspec.models.config import DecoderConfig
from adaptspec.models.decoder import Decoder
from adaptspec.models.kv_cache import CacheLimits, CachePlan
from adaptspec.models.layers import Linear
from adaptspec.models.loading import load_model, plain_decoder
from adaptspec.models.runner import ModelInfo, Runner
from adaptspec.models.weights import DecoderWeights
from tests.conftest import MakeModel
from tests.models.packing import TOLERANCE, feed, load_runner, pack, random_tokens, reference_logits

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 64}

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama without grouped heads, untied": ("llama", {"num_key_value_heads": 4, "tie_word_embeddings": False}),
    "llama with one key-value head": ("llama", {"num_key_value_heads": 1}),
    "llama with biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama with wide heads": ("llama", {"head_dim": 16}),
    "llama3 rope": ("llama", {"rope_parameters": LLAMA3}),
    "yarn rope": ("llama", {"rope_parameters": YARN}),
    "linear rope": ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}}),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral with a window": ("mistral", {"sliding_window": 12}),
    "qwen2": ("qwen2", {}),
    "qwen2 with a window": ("qwen2", {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}),
    "qwen3": ("qwen3", {}),
    "qwen3 untied with biases": ("qwen3", {"attention_bias": True, "tie_word_embeddings": False}),
}
FAMILIES = ("llama", "mistral with a window", "qwen2", "qwen3")


def model_path(make_model: MakeModel, variant: str) -> Path:
    family, config = VARIANTS[variant]
    return make_model(family, **config)


def lean(path: Path, block_size: int | None = None, max_rows: int = 4) -> Runner:
    runner = load_runner(str(path), device="cpu", max_rows=max_rows, context=96, block_size=block_size)
    assert isinstance(runner, Decoder)
    return runner


@pytest.mark.parametrize("block_size", [None, 5], ids=["in place", "gathered"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_equal_transformers(make_model: MakeModel, variant: str, block_size: int | None) -> None:
    """Prefill from empty, a second chunk, single tokens and a verify window: all as one whole pass would."""
    path = model_path(make_model, variant)
    tokens = random_tokens(60)
    expected = reference_logits(path, tokens)
    runner = lean(path, block_size)
    pieces = [tokens[:31], tokens[31:48], tokens[48:49], tokens[49:50], tokens[50:58], tokens[58:]]
    torch.testing.assert_close(torch.cat([feed(runner, 2, piece) for piece in pieces]), expected, **TOLERANCE)


class CountedLinear:
    """A product that counts the tokens of its passes."""

    def __init__(self, linear: Linear) -> None:
        self.tokens = 0
        self._linear = linear

    @property
    def width(self) -> int:
        return self._linear.width

    def __call__(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        self.tokens += len(x)
        return self._linear(x, out)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._linear.logits(hidden)


def test_only_wanted_tokens_pass_the_whole_last_layer(make_model: MakeModel) -> None:
    """The rest of a prompt leaves keys and values there, and costs no more."""
    products: list[CountedLinear] = []

    def counted(info: ModelInfo, config: DecoderConfig, weights: DecoderWeights, plan: CachePlan) -> Runner:
        products.extend(CountedLinear(layer.gate_up) for layer in weights.layers)
        layers = zip(weights.layers, products, strict=True)
        weights = replace(weights, layers=tuple(replace(layer, gate_up=product) for layer, product in layers))
        return plain_decoder(info, config, weights, plan)

    runner = load_model(str(model_path(make_model, "llama")), device="cpu", make=counted).runner(CacheLimits(4, 96))
    prompt, draft = random_tokens(20), random_tokens(3)
    assert runner.reserve(0, 20)
    assert runner.reserve(1, 3)
    runner.forward(pack((1, draft, 3), (0, prompt, 1)))
    assert [product.tokens for product in products] == [23] * (len(products) - 1) + [4]


@pytest.mark.parametrize("block_size", [None, 5], ids=["in place", "gathered"])
@pytest.mark.parametrize("variant", FAMILIES)
def test_a_mixed_batch_equals_its_rows_one_by_one(make_model: MakeModel, variant: str, block_size: int | None) -> None:
    """A prompt chunk that wants nothing, a first chunk, a single token and a verify window in one pass."""
    path = model_path(make_model, variant)
    texts = [random_tokens(40, seed) for seed in range(4)]
    cached = [0, 17, 23, 30]
    counts = [33, 20, 1, 6]
    wanted = [1, 0, 1, 6]
    runner = lean(path, block_size)
    for row in range(1, 4):
        feed(runner, row, texts[row][: cached[row]])
    parts = [(row, texts[row][cached[row] : cached[row] + counts[row]], wanted[row]) for row in range(4)]
    for row in range(4):
        assert runner.reserve(row, cached[row] + counts[row])
    order = [2, 0, 3, 1]
    logits = runner.forward(pack(*(parts[row] for row in order))).logits.split([wanted[row] for row in order])
    for row, got in zip(order, logits, strict=True):
        alone = lean(path)
        full = feed(alone, 0, texts[row][: cached[row] + counts[row]])
        torch.testing.assert_close(got, full[len(full) - wanted[row] :], **TOLERANCE)
        assert runner.length(row) == cached[row] + counts[row]


@pytest.mark.parametrize("block_size", [None, 5], ids=["in place", "gathered"])
@pytest.mark.parametrize("variant", FAMILIES)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_the_cache_after_any_history_equals_a_fresh_prefill(
    make_model: MakeModel, variant: str, block_size: int | None, data: st.DataObject
) -> None:
    """Forward, roll back, free, in any order and interleaved over rows: what remains predicts as a fresh cache does."""
    path = model_path(make_model, variant)
    runner = lean(path, block_size, max_rows=2)
    texts: dict[int, list[int]] = {0: [], 1: []}
    for _ in range(data.draw(st.integers(1, 8))):
        row = data.draw(st.integers(0, 1))
        action = data.draw(st.sampled_from(["feed", "feed", "truncate", "free"]))
        if action == "feed":
            tokens = data.draw(st.lists(st.integers(4, 259), min_size=1, max_size=min(14, 90 - len(texts[row]))))
            feed(runner, row, tokens, wanted=data.draw(st.integers(0, len(tokens))))
            texts[row] += tokens
        elif action == "truncate":
            length = data.draw(st.integers(0, len(texts[row])))
            runner.truncate(row, length)
            del texts[row][length:]
        else:
            runner.free(row)
            texts[row] = []
        assert runner.length(row) == len(texts[row])
    fresh = lean(path, max_rows=2)
    probe = [7, 8, 9]
    for row, text in texts.items():
        torch.testing.assert_close(feed(runner, row, probe), feed(fresh, row, text + probe)[-3:], **TOLERANCE)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bit_dtypes_stay_close_to_float32(make_model: MakeModel, dtype: str) -> None:
    """Logits come back in float32 and agree with float32 to what the dtype can carry."""
    path = make_model("qwen3")
    tokens = random_tokens(24)
    narrow = load_runner(str(path), device="cpu", dtype=dtype, max_rows=2, context=64)
    logits = feed(narrow, 0, tokens)
    expected = feed(lean(path), 0, tokens)
    assert logits.dtype == torch.float32
    similarity = torch.nn.functional.cosine_similarity(logits, expected, dim=-1)
    assert similarity.min() > (0.98 if dtype == "bfloat16" else 0.999)


def test_a_full_cache_is_an_error_and_changes_nothing(make_model: MakeModel) -> None:
    runner = load_runner(str(make_model("llama")), device="cpu", max_rows=2, context=32, cache_tokens=32)
    feed(runner, 0, [5, 6])
    assert not runner.reserve(1, 1)
    with pytest.raises(EngineError, match="no room"):
        runner.forward(pack((1, [5], 1)))
    assert runner.length(1) == 0
    assert runner.length(0) == 2


@pytest.mark.parametrize("block_size", [None, 5], ids=["in place", "gathered"])
@pytest.mark.parametrize("variant", ["llama", "qwen3"])
def test_numbers_that_are_none_stay_with_their_row(
    make_model: MakeModel, tmp_path: Path, variant: str, block_size: int | None
) -> None:
    """A token without a usable embedding breaks the row that reads it, and no other: neither rows beside it, nor those
    that get its place in the cache.
    """
    broken, bad = tmp_path / "broken", 7
    shutil.copytree(model_path(make_model, variant), broken)
    tensors = load_file(broken / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors["model.embed_tokens.weight"][bad] = torch.nan
    save_file(tensors, broken / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((broken / "config.json").read_text()) | {"tie_word_embeddings": False}
    (broken / "config.json").write_text(json.dumps(config))
    poisoned, clean = lean(broken, block_size), lean(broken, block_size)
    for row in range(4):
        feed(poisoned, row, [bad, *random_tokens(40, seed=row)])
        poisoned.free(row)
    texts = [[token for token in random_tokens(9 + row, seed=row) if token != bad] for row in range(4)]
    for row, text in enumerate(texts):
        torch.testing.assert_close(feed(poisoned, row, text), feed(clean, row, text), **TOLERANCE)
    for tokens in ([8, 9, 10], [bad, 9, 10]):
        parts = [(row, tokens if row == 1 else [11, 12, 13], 3) for row in range(4)]
        both = []
        for runner in (poisoned, clean):
            for row in range(4):
                assert runner.reserve(row, runner.length(row) + 3)
            both.append(runner.forward(pack(*parts)).logits.split(3))
        for row in (0, 2, 3):
            torch.testing.assert_close(both[0][row], both[1][row], **TOLERANCE)
            assert both[0][row].isfinite().all()
        assert both[0][1].isnan().any() == (tokens[0] == bad)

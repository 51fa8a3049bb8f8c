"""The lean decoder against transformers: packed, cached, rolled back; and what a pass plans once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adaptspec.errors import EngineError
from adaptspec.models.attention import Span
from adaptspec.models.config import read_decoder_config
from adaptspec.models.decoder import Decoder, PassPlan
from adaptspec.models.kv_cache import CacheLimits, CachePlan, KVCache
from adaptspec.models.layers import rotations
from adaptspec.models.loading import load_model
from adaptspec.models.runner import Runner
from tests.conftest import MakeModel
from tests.models.packing import TOLERANCE, cached, feed, load_runner, pack, random_tokens, reference_logits

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
    logits = runner.forward(pack(*(parts[row] for row in order))).split([wanted[row] for row in order])
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


def test_a_freed_row_leaks_nothing_into_the_next(make_model: MakeModel) -> None:
    """The block of a finished request is reused for another: only the new tokens may matter, NaNs in it do not."""
    runner = load_runner(str(make_model("llama")), device="cpu", max_rows=1, context=32)
    assert isinstance(runner, Decoder)
    first = feed(runner, 0, random_tokens(20, seed=5))
    runner.free(0)
    for layer in runner._cache.pool:
        layer.fill_(float("nan"))
    again = feed(runner, 3, random_tokens(20, seed=5))
    assert torch.equal(first, again)


def test_tokens_that_want_no_logits_give_none(make_model: MakeModel) -> None:
    runner = lean(make_model("llama"))
    logits = feed(runner, 0, [5, 6, 7], wanted=0)
    assert logits.shape == (0, 260)
    assert runner.length(0) == 3


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


def test_other_weights_are_adopted_between_two_passes(make_model: MakeModel) -> None:
    """From then on it computes as whoever has had them from the start, in passes of few tokens and of many; rows that
    are read meanwhile keep what the former ones have cached."""
    mine, other = (load_model(str(make_model("llama", seed=seed)), device="cpu") for seed in (0, 1))
    runner, expected = (model.runner(CacheLimits(4)) for model in (mine, other))
    assert isinstance(runner, Decoder)
    tokens = random_tokens(24)
    assert other.weights is not None
    feed(runner, 0, tokens[:12])
    before = cached(runner, 0)
    assert runner.adopt(other.weights) is mine.weights
    for row, count in enumerate((5, 24), start=1):
        assert torch.equal(feed(runner, row, tokens[:count]), feed(expected, row, tokens[:count]))
    assert torch.equal(cached(runner, 0), before)


def test_a_full_cache_is_an_error_and_changes_nothing(make_model: MakeModel) -> None:
    runner = load_runner(str(make_model("llama")), device="cpu", max_rows=2, context=32, cache_tokens=32)
    feed(runner, 0, [5, 6])
    assert not runner.reserve(1, 1)
    with pytest.raises(EngineError, match="no room"):
        runner.forward(pack((1, [5], 1)))
    assert runner.length(1) == 0
    assert runner.length(0) == 2


CONFIG = read_decoder_config(
    {
        "model_type": "llama",
        "vocab_size": 20,
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 16,
    }
)


def planned(
    spans: Sequence[Span], block_size: int = 16, dtype: torch.dtype = torch.float32
) -> tuple[PassPlan, KVCache]:
    cache = KVCache(CONFIG.cache_shape, CachePlan(64, 16, block_size), dtype, torch.device("cpu"))
    for span in spans:
        cache.reserve(span.row, span.end)
    table = rotations(CONFIG.rope, CONFIG.head_dim, 16).unsqueeze(1)
    return PassPlan(CONFIG, cache, spans, table, torch.empty(0, dtype=dtype)), cache


@pytest.mark.parametrize(
    ("wanted", "expected"), [([3, 2], [0, 1, 2, 3, 4]), ([1, 2], [2, 3, 4]), ([0, 1], [4]), ([0, 0], [])]
)
def test_the_last_wanted_tokens_of_each_row_are_picked(wanted: list[int], expected: list[int]) -> None:
    plan, _ = planned([Span(0, 0, 3), Span(1, 4, 6)])
    values = torch.arange(5)
    first, second = plan.pick(wanted, values, values * 10)
    assert first.tolist() == expected
    assert second.tolist() == [10 * i for i in expected]


@pytest.mark.parametrize("block_size", [16, 3])
@pytest.mark.parametrize("spans", [[Span(2, 0, 5)], [Span(0, 0, 3), Span(1, 0, 2)]])
def test_keys_are_stored_rotated_and_values_as_they_are(spans: list[Span], block_size: int) -> None:
    """One row and several rows take different ways of writing: both must land in the right slots."""
    torch.manual_seed(0)
    plan, cache = planned(spans, block_size)
    qkv = torch.randn(5, 16)  # two query heads, one key head, one value head, of four dimensions
    keys, values = qkv[:, 8:12].clone(), qkv[:, 12:].clone()
    plan.attend(1, qkv, None)
    slots = torch.cat([torch.from_numpy(cache.slots(*span[:3])) for span in spans])
    positions = [position for span in spans for position in range(span.start, span.end)]
    turned = keys.view(torch.complex64) * rotations(CONFIG.rope, 4, 16)[positions]
    torch.testing.assert_close(cache.pool[1][slots], torch.cat([turned.view(torch.float32), values], 1))


def test_16_bit_rotation_is_the_float32_rotation_rounded() -> None:
    torch.manual_seed(0)
    spans = [Span(0, 0, 5)]
    wide, wide_cache = planned(spans)
    narrow, narrow_cache = planned(spans, dtype=torch.bfloat16)
    qkv = torch.randn(5, 16).bfloat16()
    wide.attend(0, qkv.float(), None)
    narrow.attend(0, qkv, None)
    slots = torch.from_numpy(wide_cache.slots(*spans[0][:3]))
    assert torch.equal(narrow_cache.pool[0][slots], wide_cache.pool[0][slots].bfloat16())

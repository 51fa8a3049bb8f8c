"""Other architectures run through transformers behind the same contract; those that cannot roll back are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    DynamicCache,
    Gemma2Config,
    GPT2Config,
    GPTBigCodeConfig,
    GPTNeoXConfig,
    MambaConfig,
    Phi3Config,
    PretrainedConfig,
)

from adaptspec.errors import EngineError, ModelError
from adaptspec.models.loading import load_model
from adaptspec.models.transformers_runner import TransformersRunner
from tests.models.packing import TOLERANCE, feed, load_runner, pack, random_tokens, reference_logits

SMALL = {"vocab_size": 60, "initializer_range": 0.2, "bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0}
GPT2 = GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=64, **SMALL)
NEOX = GPTNeoXConfig(
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    max_position_embeddings=64,
    **SMALL,
)
SHAPE = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    **SMALL,
}
GEMMA2 = Gemma2Config(head_dim=8, sliding_window=8, **SHAPE)
MAMBA = MambaConfig(hidden_size=16, state_size=4, num_hidden_layers=2, vocab_size=60, bos_token_id=1, eos_token_id=1)


def saved(folder: Path, config: PretrainedConfig) -> Path:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def load(folder: Path, **limits: int) -> TransformersRunner:
    runner = load_runner(str(folder), device="cpu", max_rows=3, **limits)
    assert isinstance(runner, TransformersRunner)
    return runner


@pytest.mark.parametrize("config", [GPT2, NEOX], ids=["gpt2", "gpt-neox"])
def test_chunks_windows_and_rollbacks_equal_one_whole_pass(tmp_path: Path, config: PretrainedConfig) -> None:
    path = saved(tmp_path, config)
    tokens = random_tokens(30, vocab=60)
    expected = reference_logits(path, tokens)
    runner = load(path)
    feed(runner, 0, tokens[:12])
    feed(runner, 0, [9, 9, 9, 9], wanted=0)
    runner.truncate(0, 10)
    assert runner.length(0) == 10
    feed(runner, 1, tokens[:20])
    assert runner.reserve(0, 18)
    assert runner.reserve(1, 21)
    logits = runner.forward(pack((1, tokens[20:21], 1), (0, tokens[10:18], 5))).logits
    torch.testing.assert_close(logits[0], expected[20], **TOLERANCE)
    torch.testing.assert_close(logits[1:], expected[13:18], **TOLERANCE)


def test_freed_rows_start_empty_and_memory_is_accounted(tmp_path: Path) -> None:
    path = saved(tmp_path, GPT2)
    runner = load(path, cache_tokens=64, context=32)
    first = feed(runner, 0, [5, 6, 7])
    assert not runner.reserve(1, 64)
    with pytest.raises(EngineError, match="no room"):
        runner.forward(pack((1, random_tokens(64, vocab=60), 1)))
    runner.free(0)
    runner.free(0)
    assert runner.length(0) == 0
    assert runner.reserve(1, 64)
    runner.free(1)
    assert torch.equal(feed(runner, 0, [5, 6, 7]), first)
    runner.truncate(0, 0)
    assert torch.equal(feed(runner, 0, [5, 6, 7]), first)
    assert runner.info.architecture == "gpt2"
    assert runner.info.vocab_size == 60


def test_a_window_hides_what_left_it_after_rollbacks_too(tmp_path: Path) -> None:
    """Gemma 2 sees 8 tokens in every other layer: a text of 30, cut back on the way, is as in one pass."""
    path = saved(tmp_path, GEMMA2)
    tokens = random_tokens(30, vocab=60)
    runner = load(path)
    feed(runner, 0, [*tokens[:20], 9, 9, 9], wanted=0)
    runner.truncate(0, 20)
    logits = torch.cat([feed(runner, 0, [token]) for token in tokens[20:25]] + [feed(runner, 0, tokens[25:])])
    torch.testing.assert_close(logits, reference_logits(path, tokens)[20:], **TOLERANCE)


def test_a_recurrent_state_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"MambaForCausalLM cannot be served: .* choose a model with attention"):
        load(saved(tmp_path, MAMBA))


def test_a_cache_that_does_not_come_back_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found out by trying: a rollback that forgets the newest tokens' keys but not their values."""

    def crop(cache: DynamicCache, count: int) -> None:
        for layer in cache.layers:
            layer.keys, layer.values = layer.keys[..., :count, :], layer.values[..., -count:, :]

    monkeypatch.setattr(DynamicCache, "crop", crop)
    with pytest.raises(ModelError, match=r"logits are .* off after a rollback"):
        load(saved(tmp_path, GPT2))


def test_text_may_be_as_long_as_rotations_stay_as_they_are(tmp_path: Path) -> None:
    """Phi-3 of a long context changes all rotations beyond 32 tokens: cached ones would be of another kind."""
    scaling = {"type": "longrope", "short_factor": [1.1] * 4, "long_factor": [4.0] * 4}
    path = saved(tmp_path, Phi3Config(**SHAPE, original_max_position_embeddings=32, rope_scaling=scaling))
    runner = load(path)
    assert runner.info.context == 32
    tokens = random_tokens(32, vocab=60)
    logits = torch.cat([feed(runner, 0, tokens[:16]), feed(runner, 0, tokens[16:])])
    torch.testing.assert_close(logits, reference_logits(path, tokens), **TOLERANCE)


def test_a_token_takes_what_it_takes(tmp_path: Path) -> None:
    """A cached token is counted as it is stored: GPT-BigCode's heads share one key and one value of 8 numbers."""
    config = GPTBigCodeConfig(n_embd=16, n_layer=2, n_head=2, n_positions=64, multi_query=True, **SMALL)
    assert load_model(str(saved(tmp_path, config)), device="cpu").bytes_per_token == 2 * 2 * 8 * 4


def test_missing_weights_are_refused(tmp_path: Path) -> None:
    """transformers would start them at random and only log it."""
    path = saved(tmp_path, GPT2)
    deeper = GPT2Config(**(GPT2.to_dict() | {"n_layer": 3}))
    deeper.save_pretrained(path)
    with pytest.raises(ModelError, match="missing keys"):
        load(path)

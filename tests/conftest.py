"""Shared fixtures: tiny random Hugging Face models on disk, with a tokenizer that covers every byte."""

from __future__ import annotations

import json
import os
import random
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

pytest.register_assert_rewrite("tests.exactness.harness")  # so that a failure shows both answers

TINY_VOCAB = 260  # 4 special tokens and 256 bytes
TINY_CONTEXT = 256

CHAT_TEMPLATE = (
    "{%- for m in messages -%}"
    "{{- '<|user|>' if m['role'] == 'user' else '<|assistant|>' -}}{{- m['content'] + '<|end|>' -}}"
    "{%- endfor -%}{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)

FAMILIES: dict[str, type[Any]] = {
    "llama": LlamaConfig,
    "mistral": MistralConfig,
    "qwen2": Qwen2Config,
    "qwen3": Qwen3Config,
    "gpt2": GPT2Config,
}

MakeModel = Callable[..., Path]

# Folders whose tests start whole programs, and the marker of those that do it in the environment of another engine.
WHOLE = ("e2e", "chaos", "clients")
_ELSEWHERE = ("hosts", "nightly")

# Seconds after which a test that hangs is ended, by its marker; pyproject.toml says it of all others. They are far more
# than any test takes, on a machine that has much else to do.
PATIENCE = {"nightly": 7200, "clients": 3600, "soak": 3600, "whole": 600}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what takes minutes with -m "not whole"; single files elsewhere mark themselves."""
    here = Path(__file__).parent
    for item in items:
        if item.path.relative_to(here).parts[0] in WHOLE or any(map(item.get_closest_marker, _ELSEWHERE)):
            item.add_marker(pytest.mark.whole)
        marker = next((name for name in PATIENCE if item.get_closest_marker(name)), None)
        if marker is not None and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(PATIENCE[marker]))


def pytest_configure() -> None:
    """One thread, here and in programs that are started: tiny models gain little from more, and tests share a machine.

    What hypothesis tries is the same every time, however long it takes; `--hypothesis-profile=default` looks further.
    """
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    settings.register_profile("same", derandomize=True, deadline=None)


@pytest.fixture(autouse=True)
def _same_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests without a seed are given the same ones every time."""
    monkeypatch.setattr(secrets, "randbits", random.Random(0).getrandbits)


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """A byte tokenizer: id 0 <|pad|>, 1 <|end|>, 2 <|user|>, 3 <|assistant|>, then the 256 bytes."""
    specials = ["<|pad|>", "<|end|>", "<|user|>", "<|assistant|>"]
    tokens = specials + sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<|pad|>",
        eos_token="<|end|>",
        additional_special_tokens=["<|user|>", "<|assistant|>"],
        model_max_length=TINY_CONTEXT,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer that every tiny model carries."""
    return tiny_tokenizer()


@pytest.fixture(scope="session")
def make_model(tmp_path_factory: pytest.TempPathFactory) -> MakeModel:
    """A function `(family="llama", *, seed=0, **config) -> Path` that writes a tiny random model.

    Same arguments give the same directory, so treat it as read-only (copy it to break it). Weights are drawn
    wide (0.25), which makes logits spread and different seeds disagree.
    """
    built: dict[str, Path] = {}

    def make(family: str = "llama", *, seed: int = 0, **config: Any) -> Path:
        key = json.dumps([family, seed, config], sort_keys=True, default=str)
        if key not in built:
            built[key] = tmp_path_factory.mktemp(f"{family}-{seed}-") / "model"
            write_tiny_model(built[key], family, seed, config)
        return built[key]

    return make


def write_tiny_model(folder: Path, family: str, seed: int, config: dict[str, Any]) -> None:
    """Write a tiny model of `family` with its tokenizer; `config` overrides the tiny sizes."""
    settings: dict[str, Any] = {
        "vocab_size": TINY_VOCAB,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": TINY_CONTEXT,
        "initializer_range": 0.25,
        "bos_token_id": None,
        "eos_token_id": 1,
        "pad_token_id": 0,
        "tie_word_embeddings": True,
    }
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(FAMILIES[family](**(settings | config)))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:  # norms and biases start at 1 and 0: move them, so that tests can see them
                parameter.normal_(1.0 if "norm" in name else 0.0, 0.25)
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)


@pytest.fixture(scope="session")
def target_path(make_model: MakeModel) -> Path:
    """A tiny target."""
    return make_model("llama", seed=0)


@pytest.fixture(scope="session")
def draft_path(make_model: MakeModel) -> Path:
    """A tiny draft that shares the target's tokenizer and often disagrees with it."""
    return make_model("llama", seed=1, num_hidden_layers=1)

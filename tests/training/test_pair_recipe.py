"""The recipe of the bundled pair: its tokenizer loses nothing, and both models are ordinary directories."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from adaptspec.errors import ConfigError
from adaptspec.training.corpus import Record
from examples.recipes.pair.__main__ import PRESETS, train_pair
from examples.recipes.pair.tokenizer import SPECIAL_TOKENS, markup, train_tokenizer

TOKENIZER = train_tokenizer(["the cat sat on the mat, 1999 times"] * 20, 300, 128)


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    return TOKENIZER


@given(st.text(st.characters(exclude_categories=("Cs",)), max_size=40))
def test_every_text_survives_encoding(text: str) -> None:
    """Byte-level: nothing is unknown, nothing is lost."""
    ids = TOKENIZER(text, add_special_tokens=False).input_ids
    if not any(special in text for special in SPECIAL_TOKENS):
        assert TOKENIZER.decode(ids) == text


def test_digits_never_merge(tokenizer: PreTrainedTokenizerFast) -> None:
    """Numbers are spelled digit by digit, which small models need."""
    assert len(tokenizer("1999", add_special_tokens=False).input_ids) == 4


def test_the_chat_template_writes_the_training_layout(tokenizer: PreTrainedTokenizerFast) -> None:
    """A served prompt must look exactly like a training record up to the answer."""
    messages = [{"role": "user", "content": "Hi"}]
    prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert markup(Record(tuple(messages), "Hello")) == f"{prompt}Hello<|end|>\n"


def test_the_chat_template_folds_system_into_user(tokenizer: PreTrainedTokenizerFast) -> None:
    """The models never saw a system turn."""
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    assert text == "<|user|>\nBe brief.\n\nHi<|end|>\n"


@pytest.fixture(scope="module")
def out(corpus_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the recipe has run."""
    out = tmp_path_factory.mktemp("pair") / "out"
    train_pair(corpus_path, out, PRESETS["tiny"], Console(quiet=True))
    return out


@pytest.mark.whole
@pytest.mark.parametrize("name", ["target", "draft"])
def test_both_models_are_ordinary_directories_in_bfloat16(out: Path, name: str) -> None:
    """With tokenizer and chat template."""
    weights = load_file(out / name / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}
    assert "lm_head.weight" not in weights  # tied
    model = AutoModelForCausalLM.from_pretrained(out / name)
    assert model.config.eos_token_id == 1
    tokenizer = AutoTokenizer.from_pretrained(out / name)
    assert len(tokenizer) == model.config.vocab_size == 300


@pytest.mark.whole
def test_a_finished_run_is_reused_and_other_settings_are_refused(out: Path, corpus_path: Path) -> None:
    trained = torch.load(out / "target.state", weights_only=True)
    for name, tensor in load_file(out / "target" / "model.safetensors").items():
        assert torch.equal(tensor, trained["model"][name].to(torch.bfloat16))
    train_pair(corpus_path, out, PRESETS["tiny"], Console(quiet=True))
    again = torch.load(out / "target.state", weights_only=True)
    assert (again["step"], again["seconds"]) == (trained["step"], trained["seconds"])
    report = json.loads((out / "report.json").read_text())
    assert report["stages"]["draft"]["tokens"] > 0
    assert [row["task"] for row in report["acceptance"]][-1] == "all"
    with pytest.raises(ConfigError, match="other settings"):
        train_pair(corpus_path, out, replace(PRESETS["tiny"], batch=3), Console(quiet=True))

"""The whole recipe, tiny: from a corpus file to two model directories, and again."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from adaptspec.errors import ConfigError, CorpusError
from adaptspec.training.pair import train_pair
from adaptspec.training.pair_settings import PairSettings, Shape

SETTINGS = PairSettings(
    target=Shape(hidden=16, layers=2, heads=2, mlp=16),
    draft=Shape(hidden=8, layers=1, heads=1, mlp=8),
    vocab_size=300,
    context=256,
    target_minutes=0.01,
    draft_minutes=0.01,
    batch=4,
    window=32,
    compile=False,
)


@pytest.fixture(scope="module")
def work(corpus_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which the recipe has run, on prompts of its own."""
    work = tmp_path_factory.mktemp("pair") / "deep" / "work"
    prompts = work.parent / "prompts.jsonl"
    work.parent.mkdir()
    prompts.write_text(json.dumps({"task": "chat", "source": "synthetic", "prompt": "the cat"}) + "\n")
    train_pair(corpus_path, work, SETTINGS, Console(quiet=True), prompts)
    return work


@pytest.mark.parametrize("name", ["target", "draft"])
def test_both_models_are_ordinary_directories_in_bfloat16(work: Path, name: str) -> None:
    """Anything that reads Hugging Face directories reads them, tokenizer and chat template included."""
    weights = load_file(work / name / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}
    assert "lm_head.weight" not in weights  # tied
    model = AutoModelForCausalLM.from_pretrained(work / name)
    assert model.config.eos_token_id == 1
    assert json.loads((work / name / "config.json").read_text())["dtype"] == "bfloat16"
    tokenizer = AutoTokenizer.from_pretrained(work / name)
    assert len(tokenizer) == model.config.vocab_size == 300
    chat = [{"role": "user", "content": "Hi"}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert text == "<|user|>\nHi<|end|>\n<|assistant|>\n"


def test_the_exported_target_is_the_trained_one(work: Path) -> None:
    """Rounded to bfloat16 and nothing else: the checkpoint's weights."""
    trained = torch.load(work / "target.ckpt", weights_only=True)["model"]
    for name, tensor in load_file(work / "target" / "model.safetensors").items():
        assert torch.equal(tensor, trained[name].to(torch.bfloat16))


def test_the_recipe_ends_with_report_card_and_record(work: Path) -> None:
    """What was made, from what, for how long, and how good it is."""
    report = json.loads((work / "report.json").read_text())
    assert [figures["task"] for figures in report["acceptance"]] == ["chat", "all"]
    assert (work / "report.md").read_text().startswith("# Report")
    card = (work / "README.md").read_text()
    assert "CPU (1 threads)" in card
    record = json.loads((work / "recipe.json").read_text())
    assert record["stages"]["target"]["tokens"] > 0
    assert record["sources"].keys() == {"svamp", "synthetic"}


def test_running_again_changes_nothing_and_more_time_trains_on(work: Path, corpus_path: Path) -> None:
    """A finished run is reused; adding minutes goes on from its last step."""
    before = torch.load(work / "target.ckpt", weights_only=True)
    train_pair(corpus_path, work, SETTINGS, Console(quiet=True))
    again = torch.load(work / "target.ckpt", weights_only=True)
    assert (again["step"], again["seconds"]) == (before["step"], before["seconds"])
    longer = dataclasses.replace(SETTINGS, target_minutes=0.012)
    train_pair(corpus_path, work, longer, Console(quiet=True))
    assert torch.load(work / "target.ckpt", weights_only=True)["step"] > before["step"]


def test_nothing_is_made_for_a_corpus_that_cannot_be_read(tmp_path: Path, console: Console) -> None:
    """A mistyped name leaves no directory behind."""
    with pytest.raises(CorpusError, match="cannot be read"):
        train_pair(tmp_path / "none.jsonl", tmp_path / "out", SETTINGS, console)
    assert not (tmp_path / "out").exists()


def test_a_directory_begun_with_other_settings_is_refused(work: Path, corpus_path: Path, console: Console) -> None:
    """Before anything in it is touched."""
    other = dataclasses.replace(SETTINGS, target=Shape(hidden=8, layers=1, heads=1, mlp=8))
    with pytest.raises(ConfigError, match=r"other settings \(target\)"):
        train_pair(corpus_path, work, other, console)


def test_a_corpus_too_small_for_the_vocabulary_is_refused(tmp_path: Path, console: Console) -> None:
    """Models with tokens that no text can make are not trained."""
    corpus = tmp_path / "small.jsonl"
    corpus.write_text(json.dumps({"task": "chat", "src": "x", "text": "a b"}) + "\n")
    with pytest.raises(CorpusError, match="--vocab-size"):
        train_pair(corpus, tmp_path / "out", SETTINGS, console)


def test_an_output_path_that_is_a_file_is_refused(corpus_path: Path, console: Console) -> None:
    """Said before the corpus is read."""
    with pytest.raises(ConfigError, match="give another --out"):
        train_pair(corpus_path, corpus_path, SETTINGS, console)

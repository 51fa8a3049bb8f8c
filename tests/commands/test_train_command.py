"""`adaptspec train`: what is asked for reaches the recipe, what cannot be is refused with what to do instead."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from adaptspec.cli import main
from adaptspec.training.pair_settings import PairSettings, load_record
from tests.conftest import MakeModel


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A file of a few records of two sources."""
    path = tmp_path / "corpus.jsonl"
    lines = [{"task": "story", "src": f"library-{i % 2}", "text": f"Once there was fox number {i}."} for i in range(50)]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


@pytest.mark.parametrize(
    "given", ["--minutes 0", "--window 13", "--learning-rate nan", "--device tpu", "--temperature -1"]
)
def test_settings_of_a_drafter_that_cannot_be_used_are_refused(
    given: str, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the name of their flag, before the target is loaded."""
    out = tmp_path / "out"
    assert main(f"train eagle --corpus {corpus} --out {out} --target nowhere {given}".split()) == 2
    assert given.split()[0] in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["--source-weight", "libary-0=0.5"], "libary-0: the corpus has no such source; it has: library-0, library-1"),
        (["--source-weight", "library-0"], "must be SOURCE=SHARE, such as synthetic=0.6"),
        (["--source-weight", "library-0=2"], "between 0 and 1"),
        (["--vocab-size", "3"], "--vocab-size"),
        (["--window", "1"], "between 2 and the context"),
        (["--target-minutes", "0"], "above 0"),
        (["--draft-minutes", "0"], "above 0"),
        (["--device", "tpu"], "--device"),
        (["--prompts", "nowhere.jsonl"], "nowhere.jsonl"),
    ],
)
def test_settings_that_cannot_be_used_are_refused_before_any_training(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], hint: str
) -> None:
    """The real recipe, on a corpus that is there: nothing is left on disk."""
    out = tmp_path / "work"
    assert main(["train", "pair", "--corpus", str(corpus), "--preset", "cpu", "--out", str(out), *arguments]) == 2
    assert hint in capsys.readouterr().err
    assert not out.exists()


def test_what_is_asked_of_a_drafter_reaches_the_recipe(
    make_model: MakeModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The record of the run says so. The answers of the target are too short to learn from, so nothing is trained."""
    corpus, out, answers = tmp_path / "corpus.jsonl", tmp_path / "out", tmp_path / "answers"
    line = {"task": "story", "src": "library", "completion": "Once there was a fox."}
    corpus.write_text("\n".join(json.dumps(line | {"prompt": f"Tell me of fox number {i}."}) for i in range(50)))
    given = f"--corpus {corpus} --target {make_model(num_hidden_layers=4)} --out {out} --answers {answers}"
    more = "--depth 2 --layers 3 --batch 2 --learning-rate 0.01 --window 64 --draft-vocab 7"
    more += " --count 2 --tokens 4 --temperature 0.5"
    assert main(f"train dflash {given} {more}".split()) == 2
    assert "one batch needs" in capsys.readouterr().err
    asked = {"kind": "dflash", "depth": 2, "layers": 3, "batch": 2, "learning_rate": 0.01, "window": 64}
    of_answers = {"count": 2, "tokens": 4, "temperature": 0.5}
    assert load_record(out).identity.items() >= (asked | of_answers | {"draft_vocab": 7}).items()
    assert load_record(answers).identity.items() >= of_answers.items()


def test_what_is_asked_of_a_pair_reaches_the_recipe(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is not given is the preset's. The corpus is too small for the vocabulary, so nothing is trained."""
    given = "--target-learning-rate 0.01 --draft-learning-rate 0.02 --batch 4 --window 64 --vocab-size 600"
    line = f"train pair --corpus {corpus} --preset cpu --out {tmp_path / 'out'} {given} --source-weight library-0=0.5"
    assert main(line.split()) == 2
    assert "--vocab-size" in capsys.readouterr().err
    chosen = replace(
        PairSettings(), target_learning_rate=0.01, draft_learning_rate=0.02, batch=4, window=64, vocab_size=600
    ).with_source_weights(["library-0=0.5"])
    assert load_record(tmp_path / "out").identity == chosen.identity


def test_tasks_need_a_corpus_that_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "tasks", "--corpus", str(tmp_path / "no.jsonl"), "--out", str(tmp_path / "t.npz")]) == 2
    assert "no.jsonl" in capsys.readouterr().err
    assert not (tmp_path / "t.npz").exists()

"""`adaptspec train`: what is asked for reaches the recipe, what cannot be is refused with what to do instead."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from adaptspec.cli import main
from adaptspec.control.tasks import SHIPPED
from adaptspec.engine.engine_config import model_place
from adaptspec.training.distillation import DistillationSettings
from adaptspec.training.pair_settings import PairSettings
from adaptspec.training.teacher_answers import AnswerSettings


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A file of a few records of two sources."""
    path = tmp_path / "corpus.jsonl"
    lines = [{"task": "story", "src": f"library-{i % 2}", "text": f"Once there was fox number {i}."} for i in range(50)]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def test_pair_settings_reach_the_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not given is the preset's."""
    seen: list[tuple[Any, ...]] = []

    def train_pair(corpus: Path, work: Path, settings: PairSettings, console: Console, prompts: Path | None) -> None:
        seen.append((corpus, work, settings, prompts))

    monkeypatch.setattr("adaptspec.training.pair.train_pair", train_pair)
    assert main(["train", "pair", "--corpus", "c.jsonl", "--preset", "cpu"]) == 0
    given = "--target-minutes 3 --draft-minutes 1.5 --target-learning-rate 0.01 --draft-learning-rate 0.02 --batch 4"
    more = "--vocab-size 600 --window 64 --device cpu --out o --prompts p --source-weight a=0.5 --source-weight b=1"
    assert main(["train", "pair", "--corpus", "c.jsonl", "--preset", "cpu", *f"{given} {more}".split()]) == 0
    chosen = replace(
        PairSettings(),
        target_minutes=3.0,
        draft_minutes=1.5,
        target_learning_rate=0.01,
        draft_learning_rate=0.02,
        batch=4,
        vocab_size=600,
        window=64,
        source_weights={"synthetic": 0.6, "a": 0.5, "b": 1.0},
        named_sources=("a", "b"),
    )
    assert seen == [
        (Path("c.jsonl"), Path("runs/pair"), PairSettings(), None),
        (Path("c.jsonl"), Path("o"), chosen, Path("p")),
    ]


def test_what_is_asked_of_a_drafter_reaches_the_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bundled target has its own draft model beside it; others have none unless one is named."""
    seen: list[tuple[DistillationSettings, Any]] = []

    def distil(corpus: Path, work: Path, settings: DistillationSettings, console: Console, **more: Any) -> None:
        assert (corpus, work, more["answers"], more["prompts"]) == (Path("c"), Path("o"), Path("a"), Path("p"))
        seen.append((settings, more["beside"]))

    monkeypatch.setattr("adaptspec.training.distillation.distil", distil)
    places = "--corpus c --out o --answers a --prompts p"
    given = "--minutes 3 --depth 2 --layers 3 --learning-rate 0.01 --batch 2 --window 64 --device cpu"
    of_answers = "--count 9 --tokens 8 --temperature 0.5"
    assert (
        main(f"train dflash {places} --target there {given} {of_answers} --draft-vocab 7 --beside small".split()) == 0
    )
    assert main(f"train medusa {places}".split()) == 0
    answers = AnswerSettings(9, 8, 0.5)
    asked = DistillationSettings(
        "dflash", "there", 3.0, 2, 3, 7, answers, learning_rate=0.01, batch=2, window=64, device="cpu"
    )
    bundled = model_place("bundled", "target"), model_place("bundled", "draft")
    assert seen == [(asked, "small"), (DistillationSettings("medusa", bundled[0]), bundled[1])]


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


def test_task_settings_reach_the_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Any, ...]] = []

    def train_tasks(corpus: Path, out: Path, console: Console, prompts: Path | None, form: str) -> None:
        seen.append((corpus, out, prompts))

    monkeypatch.setattr("adaptspec.training.task_training.train_tasks", train_tasks)
    assert main(["train", "tasks", "--corpus", "c.jsonl"]) == 0
    assert main(["train", "tasks", "--corpus", "c.jsonl", "--out", "o.npz", "--prompts", "p"]) == 0
    assert seen == [(Path("c.jsonl"), SHIPPED, None), (Path("c.jsonl"), Path("o.npz"), Path("p"))]


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["--source-weight", "libary-0=0.5"], "libary-0: the corpus has no such source; it has: library-0, library-1"),
        (["--source-weight", "library-0"], "must be SOURCE=SHARE, such as synthetic=0.6"),
        (["--source-weight", "library-0=2"], "between 0 and 1"),
        (["--vocab-size", "3"], "--vocab-size"),
        (["--window", "1"], "between 2 and the context"),
        (["--draft-minutes", "0"], "above 0"),
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


def test_a_source_of_which_nothing_is_kept_is_still_known(corpus: Path, tmp_path: Path, capsys: Any) -> None:
    """A share of 0 leaves it out; what is wrong here is something else, which is told instead."""
    prompts = tmp_path / "nowhere"
    given = ["--corpus", str(corpus), "--preset", "cpu", "--out", str(tmp_path / "w"), "--prompts", str(prompts)]
    assert main(["train", "pair", *given, "--source-weight", "library-0=0"]) == 2
    error = capsys.readouterr().err
    assert "nowhere" in error
    assert "no such source" not in error


def test_tasks_need_a_corpus_that_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "tasks", "--corpus", str(tmp_path / "no.jsonl"), "--out", str(tmp_path / "t.npz")]) == 2
    assert "no.jsonl" in capsys.readouterr().err
    assert not (tmp_path / "t.npz").exists()

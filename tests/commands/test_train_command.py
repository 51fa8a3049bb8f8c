"""`adaptspec train`: what is asked for reaches the recipe, what cannot be is refused with what to do instead."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adaptspec.cli import main


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


def test_tasks_need_a_corpus_that_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "tasks", "--corpus", str(tmp_path / "no.jsonl"), "--out", str(tmp_path / "t.npz")]) == 2
    assert "no.jsonl" in capsys.readouterr().err
    assert not (tmp_path / "t.npz").exists()

"""`adaptspec train`: flags reach the recipe, and wrong ones are refused with what to do instead."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adaptspec.cli import main
from tests.conftest import MakeModel


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A file of a few records."""
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"Tell me of fox number {i}."}) + "\n" for i in range(50)))
    return path


@pytest.mark.parametrize(
    "flags",
    [
        *("--minutes 0", "--minutes inf", "--window 13", "--learning-rate nan", "--device cuda:99", "--temperature -1"),
        "--count 0",
    ],
)
def test_settings_that_cannot_be_used_are_refused_by_name(
    flags: str, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before the target is loaded, and without a traceback."""
    out = tmp_path / "out"
    assert main(f"train eagle --corpus {corpus} --out {out} --model nowhere {flags}".split()) == 2
    assert flags.split()[0].removeprefix("--") in capsys.readouterr().err
    assert not out.exists()


def test_flags_reach_the_recipe(
    make_model: MakeModel, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The settings of the run hold them."""
    out, answers = tmp_path / "out", tmp_path / "answers"
    line = f"--corpus {corpus} --model {make_model(num_hidden_layers=4)} --out {out} --answers {answers}"
    more = "--depth 2 --layers 3 --batch 2 --learning-rate 0.01 --window 8 --draft-vocab 7 --threads 1 --device cpu"
    more += " --count 2 --max-tokens 4 --temperature 0.5 --minutes 0.02"
    assert main(f"train dflash {line} {more}".split()) == 0
    printed = capsys.readouterr().err
    assert "  training  1 s: " in printed
    trained = {
        "kind": "dflash",
        "depth": 2,
        "layers": 3,
        "batch": 2,
        "learning_rate": 0.01,
        "window": 8,
        "draft_vocab": 7,
    }
    answered = {"count": 2, "max_tokens": 4, "temperature": 0.5}
    settings = json.loads((out / "training" / "settings.json").read_text())
    assert settings.items() >= (trained | answered).items()
    assert json.loads((answers / "settings.json").read_text()).items() >= answered.items()


def test_a_dry_run_writes_nothing(
    make_model: MakeModel, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    line = f"train draft --corpus {corpus} --model {make_model()} --out {out} --dry-run --max-tokens 8 --count 4"
    line += " --batch 1 --window 24"
    assert main(line.split()) == 0
    assert "this run takes about" in capsys.readouterr().err
    assert not out.exists()


def test_the_pair_recipe_is_somewhere_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "pair", "--corpus", "x"]) == 2
    assert "python -m examples.recipes.pair" in capsys.readouterr().err


@pytest.mark.whole
@pytest.mark.parametrize("as_json", [False, True])
def test_tasks_of_a_file_are_learned_and_reported(
    as_json: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "prompts.jsonl", tmp_path / "mine.npz"
    lines = [{"task": "greet", "prompt": f"Hello {i}, how are you?"} for i in range(20)]
    lines += [{"task": "sum", "prompt": f"{i} + {i} = ?"} for i in range(20)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(["train", "tasks", str(file), "--out", str(out), *(["--json"] if as_json else [])]) == 0
    printed = capsys.readouterr().out
    if as_json:
        assert json.loads(printed)["named"] == {"greet": {"greet": 4}, "sum": {"sum": 4}}
    else:
        assert printed.startswith("100.0% of 8 held-out prompts recognised")
    assert out.exists()


def test_tasks_need_a_file_that_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "tasks", str(tmp_path / "no.jsonl"), "--out", str(tmp_path / "t.npz")]) == 2
    assert "no.jsonl" in capsys.readouterr().err
    assert not (tmp_path / "t.npz").exists()

"""The whole recipe, tiny: from a target and a corpus to a drafter that serves, and again."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from transformers import AutoModelForCausalLM

from adaptspec.config import EngineConfig
from adaptspec.engine.sync_engine import Engine
from adaptspec.errors import ConfigError, CorpusError, ModelError
from adaptspec.files import write_file
from adaptspec.request import SamplingParams
from adaptspec.training import answers as answers_module
from adaptspec.training.config import DistillConfig
from adaptspec.training.distill import distill
from adaptspec.training.trainer import LoopSettings
from tests.conftest import MakeModel
from tests.drafting.spellings import gpt2_like, write_model
from tests.models.tiny_gguf import write_gguf

KINDS = ["eagle", "dflash", "medusa", "draft"]
DEPTH = 3
QUIET = Console(quiet=True)


def config_of(kind: str, target: Path, corpus: Path, out: Path) -> DistillConfig:
    return DistillConfig(
        kind=kind,
        corpus=corpus,
        out=out,
        model=str(target),
        minutes=0.01,
        depth=DEPTH,
        count=40,
        max_tokens=12,
        batch=4,
        window=24,
        device="cpu",
    )


@pytest.fixture(scope="module")
def target(make_model: MakeModel) -> Path:
    return make_model(num_hidden_layers=4)


@pytest.fixture(scope="module")
def works(target: Path, corpus_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all kinds have been trained on the same answers; the target itself is the baseline."""
    work = tmp_path_factory.mktemp("works")
    prompts = work / "prompts.jsonl"
    prompts.write_text(json.dumps({"task": "chat", "source": "synthetic", "prompt": "the cat"}) + "\n")
    for kind in KINDS:
        config = config_of(kind, target, corpus_path, work / kind)
        distill(replace(config, answers=work / "answers", prompts=prompts, baseline=str(target)), QUIET)
    return work


@pytest.mark.whole
def test_what_was_trained_drafts_and_changes_no_text(works: Path, target: Path) -> None:
    """The engine takes the output directories as they are, greedily and with seeds."""
    prompts = ["the small cat", "a tree and then", "home again"]
    sampling = [SamplingParams(24, temperature=0.0), SamplingParams(24, temperature=0.8, seed=3)]
    plain = Engine.from_pretrained(str(target), None, "off")
    expected = [[each.tokens for each in plain.generate(prompts, one)] for one in sampling]
    for kind in KINDS:
        drafting = Engine.from_pretrained(str(target), str(works / kind), "static-3")
        done = [drafting.generate(prompts, one) for one in sampling]
        assert [[each.tokens for each in part] for part in done] == expected
        assert all(each.stats.drafted for part in done for each in part)


@pytest.mark.parametrize("kind", KINDS)
def test_it_ends_with_a_report_and_a_card(works: Path, kind: str) -> None:
    """What was made, from what, for how long, and how good it is next to the baseline."""
    report = json.loads((works / kind / "report.json").read_text())
    assert [figures["task"] for figures in report["trained"]] == ["chat", "all"]
    assert [len(figures["by_depth"]) for figures in report["baseline"]] == [DEPTH, DEPTH]
    assert report["baseline"][0]["length"] > 3.9  # the target accepts its own drafts, but at the end
    assert report["tokens"] > 0
    assert report["settings"]["count"] == 40
    assert report["sources"].keys() == {"svamp", "synthetic"}
    card = (works / kind / "README.md").read_text()
    for words in (f"adaptspec train {kind}", "The other draft model", "- count: 40\n- max_tokens: 12\n", "- svamp: "):
        assert words in card


def test_the_draft_is_an_ordinary_model(works: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(works / "draft")
    assert (model.config.hidden_size, model.config.num_hidden_layers) == (16, 1)


@pytest.mark.whole
def test_a_gguf_target_needs_no_conversion(target: Path, corpus_path: Path, tmp_path: Path) -> None:
    """Its weights are converted in memory; a head is served with the runner that is printed."""
    file = write_gguf(target, tmp_path / "model.gguf", "F16")
    for kind in ("draft", "eagle"):
        output, out = io.StringIO(), tmp_path / kind
        report = distill(config_of(kind, file, corpus_path, out), Console(file=output))
        assert report is not None
        assert report.trained[-1].output_tokens > 0
        assert (" --runner torch\n" in output.getvalue()) == (kind == "eagle")
        engine = Engine.from_config(EngineConfig(model=str(file), draft=str(out), policy=("static-3",), runner="torch"))
        (done,) = engine.generate(["the small cat"], SamplingParams(12, temperature=0.0))
        assert done.stats.drafted


def test_a_dry_run_reports_the_time_and_writes_nothing(target: Path, corpus_path: Path, tmp_path: Path) -> None:
    output = io.StringIO()
    config = replace(config_of("draft", target, corpus_path, tmp_path / "out"), dry_run=True)
    assert distill(config, Console(file=output)) is None
    for words in ("this run takes about", "  answers ", "  training ", "to end sooner: --count 10"):
        assert words in output.getvalue()
    assert not (tmp_path / "out").exists()


def interrupt_late(save: Callable[..., None]) -> Callable[..., None]:
    """Ctrl-C when the second file of answers is written, after that of the held-out prompts."""
    calls = itertools.count()

    def interrupted(path: Path, *arguments: Any, **more: Any) -> None:
        if path.suffix == ".npz" and next(calls) == 2:
            raise KeyboardInterrupt
        save(path, *arguments, **more)

    return interrupted


@pytest.mark.parametrize("stopped", ["answers", "training"])
def test_a_stopped_run_continues_and_ends_in_the_same_answers(
    stopped: str, target: Path, corpus_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C between two shards, or in training."""
    config = replace(config_of("draft", target, corpus_path, tmp_path / "out"), count=70)

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    output = io.StringIO()
    with monkeypatch.context() as patch:
        if stopped == "answers":
            patch.setattr(answers_module, "write_file", interrupt_late(write_file))
        else:
            patch.setattr(LoopSettings, "schedule", interrupt)
        with pytest.raises(KeyboardInterrupt):
            distill(config, Console(file=output))
    assert output.getvalue().endswith("stopped; the same command continues here\n")
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "training" / "answers").glob("*.npz")}
    assert len(kept) == (1 if stopped == "answers" else 2)
    report = distill(config, QUIET)
    assert report is not None
    assert report.tokens > 0
    assert all(path.stat().st_mtime_ns == written for path, written in kept.items())
    output = io.StringIO()
    assert distill(config, Console(file=output)) == report
    assert "this run takes" not in output.getvalue()  # nothing is left to do


def test_other_settings_need_another_folder(works: Path, target: Path, corpus_path: Path) -> None:
    """Neither a drafter nor its answers are mixed with those of other settings."""
    same = replace(
        config_of("eagle", target, corpus_path, works / "eagle"),
        answers=works / "answers",
        prompts=works / "prompts.jsonl",
    )
    refused = [
        (replace(same, depth=DEPTH + 1), r"\(depth\).*another --out"),
        (replace(same, count=41), r"\(count\).*another --out"),
        (replace(same, count=41, out=works / "new"), r"\(count\).*another --answers"),
        (replace(same, count=41, answers=works / "others"), r"\(count\).*another --out"),
        (replace(same, out=target), "holds another model"),
        (replace(same, out=works / "prompts.jsonl"), "is a file"),
    ]
    for config, words in refused:
        with pytest.raises(ConfigError, match=words):
            distill(config, QUIET)
    assert not (works / "new").exists()
    assert not (works / "others").exists()


@pytest.mark.parametrize(
    "unusable", ["nowhere", "other tokens", "a head", "two layers", "long prompts", "few tokens", "old torch"]
)
def test_what_cannot_be_used_is_refused_before_the_target_answers(
    make_model: MakeModel, corpus_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unusable: str
) -> None:
    """Answers take hours, and training more."""
    baseline, target, out = tmp_path / "baseline", make_model(num_hidden_layers=4), tmp_path / "work"
    if unusable == "other tokens":
        write_model(baseline, gpt2_like(300))
    elif unusable == "a head":
        baseline.mkdir()
        (baseline / "config.json").write_text("{}")
    elif unusable == "two layers":
        target = baseline = make_model()
    config = replace(config_of("eagle", target, corpus_path, out), baseline=str(baseline))
    if unusable == "long prompts":
        config = replace(config, baseline=None, max_tokens=250)
    elif unusable == "few tokens":
        config = replace(config, baseline=None, batch=1000)
    elif unusable == "old torch":
        config = replace(config, baseline=None)
        monkeypatch.delattr(torch.optim, "Muon")
    with pytest.raises((ConfigError, ModelError, CorpusError)):
        distill(config, QUIET)
    assert not out.exists()


def test_a_window_holds_a_round(tmp_path: Path) -> None:
    config = config_of("eagle", tmp_path, tmp_path, tmp_path)
    with pytest.raises(ConfigError, match="--window is 10; it must be at least 11 for drafts of 3 tokens"):
        replace(config, window=10)

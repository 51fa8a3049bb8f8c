"""The whole recipe, tiny: from a target and a corpus to something that drafts, and again."""

from __future__ import annotations

import functools
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from transformers import AutoModelForCausalLM

from adaptspec.engine.sync_engine import Engine
from adaptspec.errors import ConfigError
from adaptspec.request import SamplingParams
from adaptspec.training import distillation
from adaptspec.training.distillation import DistillationSettings, distil, head_loss
from adaptspec.training.head_files import make_head
from adaptspec.training.loop import LoopSettings, Progress, train
from adaptspec.training.optimizer import Optimizer
from adaptspec.training.teacher_answers import AnswerSettings
from adaptspec.training.tokenizer_training import Windows
from tests.conftest import MakeModel
from tests.training.test_head_modules import DEPTH, FEW, teacher_of

KINDS = ["eagle", "dflash", "medusa", "draft"]
TEXT = np.tile(np.array([5, 90, 7, 130, 9, 9, 201, 66, 17], np.uint32), 60)
WINDOWS = Windows(TEXT, batch=4, window=24)


@functools.cache
def tiny_settings(kind: str, target: Path) -> DistillationSettings:
    answers = AnswerSettings(count=40, tokens=12)
    return DistillationSettings(
        kind, str(target), 0.01, DEPTH, draft_vocab=None, answers=answers, batch=4, window=24, compile=False
    )


@pytest.fixture(scope="module")
def target(make_model: MakeModel) -> Path:
    return make_model(num_hidden_layers=4)


@pytest.fixture(scope="module")
def works(target: Path, corpus_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all kinds have been trained on the same answers, with a draft beside."""
    work, console = tmp_path_factory.mktemp("works"), Console(quiet=True)
    prompts = work / "prompts.jsonl"
    prompts.write_text(json.dumps({"task": "chat", "source": "synthetic", "prompt": "the cat"}) + "\n")
    for kind in KINDS:
        settings = tiny_settings(kind, target)
        distil(corpus_path, work / kind, settings, console, answers=work / "answers", prompts=prompts, beside=target)
    return work


@pytest.mark.whole
def test_what_was_trained_drafts_and_changes_no_text(works: Path, target: Path) -> None:
    """The engine takes the folders as they are, greedily and with seeds."""
    prompts = ["the small cat", "a tree and then", "home again"]
    sampling = [SamplingParams(24, temperature=0.0), SamplingParams(24, temperature=0.8, seed=3)]
    plain = Engine.from_pretrained(str(target), None, "off")
    expected = [[each.tokens for each in plain.generate(prompts, one)] for one in sampling]
    for kind in KINDS:
        drafting = Engine.from_pretrained(str(target), str(works / kind / kind), "static-3")
        done = [drafting.generate(prompts, one) for one in sampling]
        assert [[each.tokens for each in part] for part in done] == expected
        assert all(each.stats.drafted for part in done for each in part)


@pytest.mark.parametrize("kind", KINDS)
def test_it_ends_with_report_card_and_record(works: Path, kind: str) -> None:
    """What was made, from what, for how long, and how good it is beside the draft model."""
    report = json.loads((works / kind / "report.json").read_text())
    assert [figures["task"] for figures in report["trained"]] == ["chat", "all"]
    assert [len(figures["by_depth"]) for figures in report["beside"]] == [DEPTH, DEPTH]
    assert report["beside"][0]["length"] > 3.9  # the target itself was beside: all is kept, but at the end
    card = (works / kind / "README.md").read_text()
    assert f"adaptspec train {kind}" in card
    assert "The draft model beside it" in card
    assert json.loads((works / kind / "recipe.json").read_text())["stages"][kind]["tokens"] > 0


def test_the_draft_is_an_ordinary_model(works: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(works / "draft" / "draft")
    assert (model.config.hidden_size, model.config.num_hidden_layers) == (16, 1)


def test_other_settings_need_another_folder(works: Path, target: Path, corpus_path: Path, console: Console) -> None:
    """Neither a head nor its answers are mixed with those of other settings."""
    settings = tiny_settings("eagle", target)
    deeper = DistillationSettings(**(vars(settings) | {"depth": DEPTH + 1}))
    with pytest.raises(ConfigError, match="depth"):
        distil(corpus_path, works / "eagle", deeper, console, answers=works / "answers")
    more = DistillationSettings(**(vars(settings) | {"answers": AnswerSettings(count=41, tokens=12)}))
    with pytest.raises(ConfigError, match="count"):
        distil(corpus_path, works / "eagle", more, console, answers=works / "answers")


@pytest.mark.parametrize(("kind", "vocabulary"), [("eagle", None), ("eagle", FEW), ("dflash", FEW), ("medusa", None)])
def test_the_loss_falls(target: Path, kind: str, vocabulary: torch.Tensor | None) -> None:
    """A few steps on one text."""
    teacher = teacher_of(target)
    head = make_head(kind, teacher, DEPTH, 1, vocabulary)
    loss, optimizer = head_loss(head, teacher), Optimizer(head, 8e-3)
    before = float(loss(WINDOWS.at(0)).detach())
    for step in range(12):
        loss(WINDOWS.at(step)).backward()  # type: ignore[no-untyped-call]
        optimizer.step(1.0)
    assert float(loss(WINDOWS.at(0)).detach()) < 0.7 * before


@pytest.mark.parametrize("kind", ["eagle", "dflash", "medusa"])
def test_a_resumed_run_ends_in_the_same_weights(tmp_path: Path, target: Path, console: Console, kind: str) -> None:
    """Stopped after some steps and begun anew, with the same batches and places."""
    teacher = teacher_of(target)
    settings = LoopSettings(minutes=0.2, learning_rate=0.01, warmup_steps=3)

    def run(path: Path, stop: int | None = None) -> Any:
        head, calls, ticks = make_head(kind, teacher, DEPTH, 1), itertools.count(), itertools.count()
        usual = head_loss(head, teacher)

        def loss(ids: torch.Tensor) -> torch.Tensor:
            if next(calls) == stop:
                raise KeyboardInterrupt
            return usual(ids)

        reached = train(head, loss, WINDOWS, settings, path, console=console, clock=lambda: float(next(ticks)))
        assert reached == Progress(12, 12.0)
        return head.state_dict()

    whole = run(tmp_path / "whole.ckpt")
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "parts.ckpt", stop=6)
    parts = run(tmp_path / "parts.ckpt")
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_the_frequent_tokens_of_answers_are_drafted(target: Path) -> None:
    """As many as asked for; of a large vocabulary 32,000 without asking."""
    settings = tiny_settings("eagle", target)
    few = DistillationSettings(**(vars(settings) | {"draft_vocab": 8}))
    head, _ = distillation._student(few, teacher_of(target), TEXT)
    assert head.vocabulary.tolist() == sorted({*TEXT.tolist()})
    head, _ = distillation._student(settings, teacher_of(target), TEXT)
    assert head.vocabulary is None

"""The whole recipe, tiny: from a target and a corpus to something that drafts, and again."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from transformers import AutoModelForCausalLM

from adaptspec.engine.sync_engine import Engine
from adaptspec.errors import ConfigError, ModelError
from adaptspec.request import SamplingParams
from adaptspec.training.distillation import DistillationSettings, distil
from adaptspec.training.teacher_answers import AnswerSettings
from tests.conftest import MakeModel
from tests.drafting.spellings import gpt2_like, write_model
from tests.training.test_head_modules import DEPTH

KINDS = ["eagle", "dflash", "medusa", "draft"]
TEXT = np.tile(np.array([5, 90, 7, 130, 9, 9, 201, 66, 17], np.uint32), 60)


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
        distil(
            corpus_path, work / kind, settings, console, answers=work / "answers", prompts=prompts, beside=str(target)
        )
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
    assert "- count: 40\n- tokens: 12\n- temperature: 0.8\n" in card
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
    with pytest.raises(ConfigError, match=r"count.*another --answers"):
        distil(corpus_path, works / "new", more, console, answers=works / "answers")
    with pytest.raises(ConfigError, match=r"count.*another --out"):
        distil(corpus_path, works / "eagle", more, console, answers=works / "others")
    assert not (works / "new").exists()
    assert not (works / "others").exists()


@pytest.mark.parametrize("unusable", ["nowhere", "other tokens", "a head", "two layers"])
def test_what_cannot_be_used_is_known_before_the_target_answers(
    make_model: MakeModel, corpus_path: Path, tmp_path: Path, unusable: str
) -> None:
    """Which takes hours, and what comes behind it more."""
    settings, beside = tiny_settings("eagle", make_model(num_hidden_layers=4)), tmp_path / "beside"
    if unusable == "other tokens":
        write_model(beside, gpt2_like(300))
    elif unusable == "a head":
        beside.mkdir()
        (beside / "config.json").write_text("{}")
    elif unusable == "two layers":
        settings, beside = tiny_settings("eagle", make_model()), make_model()
    with pytest.raises((ConfigError, ModelError)):
        distil(corpus_path, tmp_path / "work", settings, Console(quiet=True), beside=str(beside))
    assert not (tmp_path / "work").exists()

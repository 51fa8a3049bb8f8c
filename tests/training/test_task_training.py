"""Training a detector for a user's tasks: it learns, reports honestly, and writes a file that serves."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from adaptspec.config import EngineConfig
from adaptspec.control.task_detector import TaskDetector
from adaptspec.engine.sync_engine import Engine
from adaptspec.errors import CorpusError
from adaptspec.request import SamplingParams
from adaptspec.training.task_training import feature_matrix, fit, quantised, train_tasks

QUIET = Console(quiet=True)
WORDINGS = {
    "billing": ("Why was I charged {} on my invoice?", "Refund order {} please.", "My card was billed twice for {}."),
    "delivery": ("Where is my parcel {}?", "When does order {} arrive?", "The courier lost package {}."),
    "returns": ("How do I send {} back?", "I want to return {}, it is broken.", "Exchange {} for another size."),
}


def lines(tasks: Sequence[str] = tuple(WORDINGS), count: int = 40) -> list[dict[str, str]]:
    rng = random.Random(0)
    return [
        {"task": t, "prompt": rng.choice(WORDINGS[t]).format(f"{rng.randrange(9999)}")}
        for t in tasks
        for _ in range(count)
    ]


def write(path: Path, records: Sequence[object]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.mark.parametrize("tasks", [("billing", "delivery"), tuple(WORDINGS)])
def test_the_stored_model_answers_as_the_trained_one(tasks: tuple[str, ...]) -> None:
    """A byte per weight is enough, the temperature changes no answer, and two tasks are no special case."""
    records = lines(tasks)
    texts, truth = [line["prompt"] for line in records], [line["task"] for line in records]
    model = fit(truth, feature_matrix(texts), 10.0)
    detector = quantised(model, 1.5)
    found = [detector.tasks[int(detector.probabilities(text).argmax())] for text in texts]
    assert found == list(model.predict(feature_matrix(texts)))
    assert np.mean(np.array(found) == np.array(truth)) > 0.99


@pytest.mark.whole
def test_a_users_tasks_are_recognised_by_the_engine(tmp_path: Path, target_path: Path) -> None:
    """The report is of lines that were held out; requests get the tasks that the file names."""
    out = tmp_path / "tasks.npz"
    report = train_tasks(write(tmp_path / "prompts.jsonl", lines()), out, QUIET)
    assert (report.tasks, report.prompts) == (("billing", "delivery", "returns"), 24)
    assert {task: sum(row.values()) for task, row in report.named.items()} == dict.fromkeys(WORDINGS, 8)
    assert report.accuracy > 0.9
    assert "of 24 held-out prompts recognised" in report.to_text()
    assert json.loads(report.to_json())["named"] == report.named
    detector = TaskDetector.load(out)
    assert detector.detect("Please refund order 17, it was charged twice").task == "billing"
    engine = Engine.from_config(EngineConfig(model=str(target_path), draft=None, task_detector=out))
    (done,) = engine.generate(["Where is my parcel 4?"], SamplingParams(2))
    assert done.stats.task == "delivery"
    assert set(WORDINGS) <= set(engine.core.controller.task_names.added)


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ([{"prompt": "x"}], "p.jsonl:1: a line needs task"),
        ([{"task": "other", "prompt": "x"}], "not 'other'"),
        ([{"task": "a" * 65, "prompt": "x"}], "1 to 64 printable"),
        ([{"task": "a", "prompt": " "}], "p.jsonl:1: the prompt is empty"),
        (lines(("billing",)), "1 task; give lines of 2 to 64"),
        (lines(count=9), "'billing' has 9 lines; give at least 10"),
    ],
)
def test_lines_that_cannot_be_learned_from_are_refused(tmp_path: Path, records: list[object], words: str) -> None:
    with pytest.raises(CorpusError, match=words):
        train_tasks(write(tmp_path / "p.jsonl", records), tmp_path / "tasks.npz", QUIET)
    assert not (tmp_path / "tasks.npz").exists()

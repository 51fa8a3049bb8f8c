"""Training the task detector: it learns, generalises where told to, and writes what the engine can load."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from adaptspec.control.task_detector import TaskDetector
from adaptspec.control.tasks import TASKS
from adaptspec.training import task_examples as task_examples_module
from adaptspec.training.corpus import read_corpus
from adaptspec.training.task_examples import task_examples
from adaptspec.training.task_report import digest
from adaptspec.training.task_training import feature_matrix, fit, quantised, train_tasks

pytestmark = pytest.mark.whole


def test_the_stored_model_answers_as_the_trained_one(corpus_path: Path) -> None:
    """A byte per weight is enough, and the temperature changes no answer."""
    examples = task_examples(read_corpus(corpus_path).train, per_source=10, phrased=30)
    texts = [example.text for example in examples]
    features = feature_matrix(texts)
    model = fit(examples, features, 10.0)
    detector = quantised(model, 1.5)
    expected = model.predict(features)
    said = [detector.tasks[int(detector.probabilities(text).argmax())] for text in texts]
    assert np.mean(expected == np.array(said)) > 0.99
    assert np.mean(expected == np.array([example.task for example in examples])) > 0.9


def test_the_command_writes_a_detector_and_reports(
    corpus_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wordings alone teach the plain cases; the report tells sources apart by whether they were seen."""
    monkeypatch.setattr(task_examples_module.task_examples, "__kwdefaults__", {"per_source": 10, "phrased": 25})
    lines = [
        {"task": "translate", "source": "elsewhere", "prompt": "Translate to French: It is late."},
        {"task": "chat", "source": "svamp", "prompt": "the small red cat"},
        {"task": "story", "source": "synthetic", "prompt": "Tell me a bedtime story about a fox."},
    ]
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("\n".join(json.dumps(line) for line in lines))
    console = Console(record=True, width=140, quiet=False, file=(tmp_path / "log").open("w"))
    detector = train_tasks(corpus_path, tmp_path / "tasks.npz", console, prompts)
    console.file.close()
    shown = console.export_text() + capsys.readouterr().out
    assert detector.tasks == TASKS
    stored = TaskDetector.load(tmp_path / "tasks.npz")
    assert stored.detect("Translate to French: It is late.").task == "translate"
    assert np.array_equal(stored.weights, detector.weights)
    for words in ("real, source never seen: 1.000 right", "synthetic: ", "real, source known: ", "time per prompt"):
        assert words in shown
    card = (tmp_path / "tasks.md").read_text()
    for words in (
        digest((tmp_path / "tasks.npz").read_bytes()),
        "adaptspec train tasks --corpus corpus.jsonl --prompts prompts.jsonl",
        "real, source never seen: 1.000 right",
        "| translate | elsewhere | real, source never seen | 1 | 1.00 | 0.00 | 0.00 |",
    ):
        assert words in card

"""Training the task detector: logistic regression over hashed n-grams, stored as plain arrays of a byte per weight.

What is chosen (regularisation, and how sure the model may be) is chosen by its answers on sources it was not trained
on: prompts of the sources it knows are too easy.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.console import Console
from scipy.sparse import csr_matrix
from scipy.special import log_softmax
from sklearn.linear_model import LogisticRegression

from adaptspec.arrays import BoolArray, FloatArray
from adaptspec.command_line import TEXT
from adaptspec.control.task_detector import MIN_CONFIDENCE, SIZE, TaskDetector, ngrams
from adaptspec.control.tasks import TASKS
from adaptspec.files import write_file
from adaptspec.tables import show
from adaptspec.training.corpus import choose_prompts, read_corpus
from adaptspec.training.task_examples import PHRASINGS, Example, example_weights, task_examples
from adaptspec.training.task_report import TaskTraining, card_path, measure_tasks, task_card

STRENGTHS = (3.0, 10.0, 30.0)  # inverse regularisation, weakest weights first
TEMPERATURES = np.geomspace(0.5, 4.0, 25)


@dataclass(frozen=True)
class LeftOut:
    """Answers on sources that were left out of training: `accuracy` is the mean over them."""

    strength: float
    accuracy: float
    temperature: float  # divides scores so that probabilities are honest there


def train_tasks(
    corpus: Path, out: Path, console: Console, prompts: Path | None = None, form: str = TEXT
) -> TaskDetector:
    """Train on a corpus, write the detector to `out` and its card beside it, measured on `prompts` or held-out records.

    Progress goes to the console, figures in a `form` of tables to standard output.

    Raises:
        CorpusError: corpus or prompts cannot be used.
    """
    read = read_corpus(corpus)
    asked = choose_prompts(prompts, read.held_out)
    examples = task_examples(read.train)
    console.print(f"{len(examples)} examples of {len({(e.task, e.source) for e in examples})} sources")
    features = feature_matrix([example.text for example in examples])
    trials = [leave_sources_out(examples, features, strength) for strength in STRENGTHS]
    for trial in trials:
        console.print(f"  strength {trial.strength:g}: {trial.accuracy:.3f} right on sources left out")
    best = max(trials, key=lambda trial: trial.accuracy)
    detector = quantised(fit(examples, features, best.strength), best.temperature)
    detector.save(out)
    size = out.stat().st_size / 1e3
    console.print(f"wrote {out} ({size:.0f} kB), strength {best.strength:g}, temperature {best.temperature:.2f}")
    figures = measure_tasks(detector, asked, {example.source for example in examples})
    training = TaskTraining(
        command=f"adaptspec train tasks --corpus {corpus.name}" + (f" --prompts {prompts.name}" if prompts else ""),
        date=datetime.now(timezone.utc).date().isoformat(),
        corpus=read.fingerprint,
        examples=Counter(sorted(example.source for example in examples)),
        left_out={trial.strength: trial.accuracy for trial in trials},
        strength=best.strength,
        temperature=best.temperature,
    )
    card = task_card(detector.tasks, MIN_CONFIDENCE, out.read_bytes(), training, figures)
    write_file(card_path(out), card.encode())
    show(figures.report(), form)
    return detector


def feature_matrix(texts: Sequence[str]) -> csr_matrix:
    """One row [SIZE] per text: 1 / sqrt(n) at each of its n n-grams."""
    indices = [ngrams(text) for text in texts]
    counts = np.array([len(index) for index in indices], dtype=np.int64)
    values = np.repeat(1.0 / np.sqrt(np.maximum(counts, 1)), counts).astype(np.float32)
    ends = np.concatenate([[0], np.cumsum(counts)])
    return csr_matrix((values, np.concatenate(indices).astype(np.int32), ends), shape=(len(texts), SIZE))


def fit(examples: Sequence[Example], features: csr_matrix, strength: float) -> LogisticRegression:
    """A model of the examples in which tasks, and sources within a task, count alike."""
    model = LogisticRegression(C=strength, max_iter=200, tol=1e-3)
    return model.fit(features, [example.task for example in examples], sample_weight=example_weights(examples))


def leave_sources_out(examples: Sequence[Example], features: csr_matrix, strength: float) -> LeftOut:
    """Train without some sources, ask about those, until each was left out once; on every other example, for time.

    A fold leaves out one source of each task that has one left; our own wordings always stay.
    """
    kept = np.arange(len(examples)) % 2 == 0
    found = [_one_fold(examples, features, kept, fold, strength) for fold in _folds(examples)]
    scores, truth, weights = (np.concatenate(parts) for parts in zip(*found, strict=True))
    right = scores.argmax(axis=1) == truth
    return LeftOut(strength, float(np.average(right, weights=weights)), _temperature(scores, truth, weights))


def quantised(model: LogisticRegression, temperature: float) -> TaskDetector:
    """The model as the detector stores it: each task's weights as whole numbers of -127 to 127 times a scale."""
    weights = np.asarray(model.coef_).T / temperature  # [SIZE, T]
    scale = np.maximum(np.abs(weights).max(axis=0), 1e-12) / 127
    bias = np.asarray(model.intercept_) / temperature
    tasks = tuple(str(task) for task in model.classes_)
    whole = np.rint(weights / scale).astype(np.int8)
    return TaskDetector(tasks, whole, scale.astype(np.float32), bias.astype(np.float32))


def _folds(examples: Sequence[Example]) -> list[set[tuple[str, str]]]:
    folds: defaultdict[int, set[tuple[str, str]]] = defaultdict(set)
    met: Counter[str] = Counter()
    for task, source in sorted({(e.task, e.source) for e in examples if e.source != PHRASINGS}):
        folds[met[task]].add((task, source))
        met[task] += 1
    return list(folds.values())


def _one_fold(
    examples: Sequence[Example], features: csr_matrix, kept: BoolArray, out: set[tuple[str, str]], strength: float
) -> tuple[FloatArray, npt.NDArray[np.int64], FloatArray]:
    """Scores [n, T], true tasks [n] and weights [n] of the examples left out; every source weighs the same."""
    left = np.array([(e.task, e.source) in out for e in examples])
    inside, outside = np.flatnonzero(kept & ~left).tolist(), np.flatnonzero(kept & left).tolist()
    model = fit([examples[i] for i in inside], features[inside], strength)
    asked = [examples[i] for i in outside]
    sizes = Counter((e.task, e.source) for e in asked)
    weights = np.array([1.0 / sizes[e.task, e.source] for e in asked])
    truth = np.array([TASKS.index(e.task) for e in asked], dtype=np.int64)
    return np.asarray(model.decision_function(features[outside])), truth, weights


def _temperature(scores: FloatArray, truth: npt.NDArray[np.int64], weights: FloatArray) -> float:
    """The temperature under which the true tasks are likeliest."""

    def surprise(temperature: float) -> float:
        likely = log_softmax(scores / temperature, axis=1)
        return -float(np.average(likely[np.arange(len(truth)), truth], weights=weights))

    return min(map(float, TEMPERATURES), key=surprise)

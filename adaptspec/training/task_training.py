"""Trains a task detector: logistic regression over hashed n-grams, stored with a byte per weight."""

from __future__ import annotations

import json
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.console import Console
from scipy.sparse import csr_matrix
from scipy.special import log_softmax
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, train_test_split

from adaptspec.arrays import FloatArray
from adaptspec.control.task_detector import SIZE, TaskDetector, ngrams
from adaptspec.control.tasks import MAX_ADDED, OTHER
from adaptspec.errors import CorpusError
from adaptspec.quantity import quantity
from adaptspec.request import LABEL_WORDS, is_label
from adaptspec.training.corpus import read_objects, strings

STRENGTHS = (3.0, 10.0, 30.0)  # inverse regularisation, weakest weights first
TEMPERATURES = np.geomspace(0.25, 4.0, 33)
FOLDS = 5
MIN_PROMPTS = 10  # of each task: two of them are held out
HELD_OUT_SHARE = 0.2


@dataclass(frozen=True)
class TaskReport:
    """Results on held-out prompts: for each task, how often each name was given (`unknown`: none).

    `seconds` is the median time of a prompt.
    """

    tasks: tuple[str, ...]
    prompts: int
    named: dict[str, dict[str, int]]
    seconds: float

    @property
    def accuracy(self) -> float:
        """The share of held-out prompts whose task was named."""
        total = sum(sum(row.values()) for row in self.named.values())
        return sum(row.get(task, 0) for task, row in self.named.items()) / total

    def to_json(self) -> str:
        return json.dumps({"accuracy": self.accuracy, **asdict(self)}, indent=1)

    def to_text(self) -> str:
        """The accuracy, and a table of tasks by the names that were given."""
        columns = [*self.tasks, "unknown"]
        width = max(8, *map(len, columns))
        rows = [["", *columns]]
        rows += [[task, *(str(row.get(name, 0)) for name in columns)] for task, row in self.named.items()]
        table = "\n".join("  ".join(cell.rjust(width) for cell in row).rstrip() for row in rows)
        total = sum(sum(row.values()) for row in self.named.values())
        return (
            f"{self.accuracy:.1%} of {total:,} held-out prompts recognised, {self.seconds * 1e3:.2f} ms per prompt\n\n"
            f"rows: the task, columns: the task that was named\n{table}"
        )


def train_tasks(file: Path, out: Path, console: Console) -> TaskReport:
    """Train on lines with `task` and `prompt`, write the detector to `out`, and report how good it is.

    A fifth of the lines is held out to measure a first detector; the one that is written learns from all of them.

    Raises:
        CorpusError: the file cannot be read, or a line or the number of lines of a task is unsuitable.
    """
    tasks, prompts = _read(file)
    console.print(f"{quantity(len(prompts), 'prompt', form=',')} of {quantity(len(set(tasks)), 'task')}")
    features = feature_matrix(prompts)
    every = np.arange(len(prompts))
    learned, held_out = train_test_split(every, test_size=HELD_OUT_SHARE, stratify=tasks, random_state=0)
    chosen = choose_strength([tasks[i] for i in learned], features[learned])
    first = quantised(fit([tasks[i] for i in learned], features[learned], chosen.strength), chosen.temperature)
    report = _measure(first, [(tasks[i], prompts[i]) for i in sorted(held_out)])
    quantised(fit(tasks, features, chosen.strength), chosen.temperature).save(out)
    console.print(
        f"wrote {out} ({out.stat().st_size / 1e3:.0f} kB); serve it with --task-detector {out}", soft_wrap=True
    )
    return report


@dataclass(frozen=True)
class Strength:
    """A strength of regularisation, and the temperature that divides its scores."""

    strength: float
    temperature: float


def feature_matrix(texts: Sequence[str]) -> csr_matrix:
    """One row [SIZE] per text: 1 / sqrt(n) at each of its n n-grams."""
    indices = [ngrams(text) for text in texts]
    counts = np.array([len(index) for index in indices], dtype=np.int64)
    values = np.repeat(1.0 / np.sqrt(np.maximum(counts, 1)), counts).astype(np.float32)
    ends = np.concatenate([[0], np.cumsum(counts)])
    return csr_matrix((values, np.concatenate(indices).astype(np.int32), ends), shape=(len(texts), SIZE))


def fit(
    tasks: Sequence[str], features: csr_matrix, strength: float, weights: Sequence[float] | None = None
) -> LogisticRegression:
    """A model of prompts and their tasks; without `weights` of the prompts each task counts the same."""
    balanced = None if weights is not None else "balanced"
    model = LogisticRegression(C=strength, max_iter=200, tol=1e-3, class_weight=balanced)
    return model.fit(features, tasks, sample_weight=weights)


def scores_of(model: LogisticRegression, features: csr_matrix) -> FloatArray:
    """Scores [N, T] before the softmax."""
    scores = np.asarray(model.decision_function(features))
    # With two classes scikit-learn returns the score of the second one.
    return scores if scores.ndim == 2 else np.stack([np.zeros_like(scores), scores], axis=1)


def choose_strength(tasks: Sequence[str], features: csr_matrix) -> Strength:
    """The strength with which prompts that were left out are recognised best, by cross-validation."""
    names = sorted(set(tasks))
    truth = np.array([names.index(task) for task in tasks])
    folds = list(StratifiedKFold(FOLDS, shuffle=True, random_state=0).split(features, truth))
    best, most_right = Strength(STRENGTHS[0], 1.0), -1
    for strength in STRENGTHS:
        scores = np.zeros((len(tasks), len(names)))
        for learned, left_out in folds:
            model = fit([tasks[i] for i in learned], features[learned], strength)
            scores[left_out] = scores_of(model, features[left_out])
        right = int((scores.argmax(axis=1) == truth).sum())
        if right > most_right:
            best, most_right = Strength(strength, choose_temperature(scores, truth)), right
    return best


def choose_temperature(scores: FloatArray, truth: npt.NDArray[np.int64], weights: FloatArray | None = None) -> float:
    """The temperature under which the true tasks [N] are likeliest, given scores [N, T]."""

    def surprise(temperature: float) -> float:
        likely = log_softmax(scores / temperature, axis=1)
        return -float(np.average(likely[np.arange(len(truth)), truth], weights=weights))

    return min(map(float, TEMPERATURES), key=surprise)


def quantised(model: LogisticRegression, temperature: float) -> TaskDetector:
    """The model as the detector stores it: weights of each task as whole numbers of -127 to 127 times a scale."""
    weights, bias = np.asarray(model.coef_).T / temperature, np.asarray(model.intercept_) / temperature
    if weights.shape[1] == 1:  # of two tasks scikit-learn keeps the second one's
        weights, bias = np.hstack([np.zeros_like(weights), weights]), np.append(np.zeros_like(bias), bias)
    scale = np.maximum(np.abs(weights).max(axis=0), 1e-12) / 127
    tasks = tuple(str(task) for task in model.classes_)
    whole = np.rint(weights / scale).astype(np.int8)
    return TaskDetector(tasks, whole, scale.astype(np.float32), bias.astype(np.float32))


def _read(file: Path) -> tuple[list[str], list[str]]:
    """Tasks and prompts of a file."""
    tasks, prompts = [], []
    for where, fields in read_objects(file):
        task, prompt = strings(where, fields, ("task", "prompt"))
        if not is_label(task) or task == OTHER:
            raise CorpusError(f"{where}: task must be {LABEL_WORDS}, and not {OTHER!r}")
        if not prompt.strip():
            raise CorpusError(f"{where}: the prompt is empty; delete the line")
        tasks.append(task)
        prompts.append(prompt)
    counts = Counter(tasks)
    if not 2 <= len(counts) <= MAX_ADDED:
        raise CorpusError(f"{file}: it has {quantity(len(counts), 'task')}; give lines of 2 to {MAX_ADDED}")
    task, least = min(counts.items(), key=lambda item: item[1])
    if least < MIN_PROMPTS:
        raise CorpusError(
            f"{file}: task {task!r} has {quantity(least, 'line')}; give at least {MIN_PROMPTS} for each task"
        )
    return tasks, prompts


def _measure(detector: TaskDetector, held_out: Sequence[tuple[str, str]]) -> TaskReport:
    named: dict[str, Counter[str]] = {task: Counter() for task in detector.tasks}
    seconds = []
    for task, prompt in held_out:
        began = time.perf_counter()
        found = detector.detect(prompt).task
        seconds.append(time.perf_counter() - began)
        named[task][found or "unknown"] += 1
    rows = {task: dict(row) for task, row in named.items()}
    return TaskReport(detector.tasks, len(held_out), rows, statistics.median(seconds))

"""How often the task detector is right, source by source, what it costs, and the card that says so.

The card is tied to the weights by their digest: one beside other weights can be told.
"""

from __future__ import annotations

import hashlib
import statistics
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from adaptspec.control.task_detector import TaskDetector
from adaptspec.tables import Table
from adaptspec.training.cards import render
from adaptspec.training.corpus import SYNTHETIC, Prompt
from adaptspec.training.task_examples import PHRASINGS

KINDS = ("synthetic", "real, source known", "real, source never seen")


@dataclass(frozen=True)
class SourceScore:
    """What the detector said of the prompts of one source."""

    task: str
    source: str
    kind: str  # one of KINDS
    prompts: int
    right: int
    unknown: int

    @property
    def accuracy(self) -> float:
        return self.right / self.prompts


@dataclass(frozen=True)
class TaskFigures:
    """What was measured of a detector: every source, and the median time of a prompt in seconds."""

    scores: tuple[SourceScore, ...]
    seconds: float

    @property
    def summaries(self) -> list[str]:
        """A line for each kind of source: the mean over its sources."""
        lines = []
        for kind in KINDS:
            scores = [score for score in self.scores if score.kind == kind]
            if scores:
                named = sum(score.prompts - score.unknown for score in scores)
                precision = sum(score.right for score in scores) / max(named, 1)
                mean = statistics.fmean(score.accuracy for score in scores)
                over = f"mean over {len(scores)} sources"
                lines.append(f"{kind}: {mean:.3f} right ({over}); of tasks named, {precision:.3f} right")
        return lines

    @property
    def table(self) -> Table:
        table = Table("task", "source", "kind", "prompts", "right", "wrong", "unknown", keys=2)
        for score in self.scores:
            counts = (score.right, score.prompts - score.right - score.unknown, score.unknown)
            shares = (f"{count / score.prompts:.2f}" for count in counts)
            table.add_row(score.task, score.source, score.kind, str(score.prompts), *shares)
        return table

    def report(self) -> list[Table | str]:
        return [self.table, *self.summaries, f"time per prompt: {self.seconds * 1e3:.3f} ms (median)"]


def score_sources(detector: TaskDetector, prompts: Sequence[Prompt], trained_on: Collection[str]) -> list[SourceScore]:
    """One score per task and source. `trained_on` are the source tags of the training examples."""
    known = {_origin(source) for source in trained_on}
    found: defaultdict[tuple[str, str], list[str | None]] = defaultdict(list)
    for prompt in prompts:
        found[prompt.task, _collection(prompt.source)].append(detector.detect(prompt.text).task)
    scores = []
    for (task, source), said in sorted(found.items()):
        kind = KINDS[0 if source == SYNTHETIC else 1 if _origin(source) in known else 2]
        scores.append(SourceScore(task, source, kind, len(said), said.count(task), said.count(None)))
    return scores


def measure_tasks(detector: TaskDetector, prompts: Sequence[Prompt], trained_on: Collection[str]) -> TaskFigures:
    """How often it names the task of these prompts rightly, and what a prompt costs."""
    took = []
    for prompt in prompts:
        start = time.perf_counter()
        detector.detect(prompt.text)
        took.append(time.perf_counter() - start)
    return TaskFigures(tuple(score_sources(detector, prompts, trained_on)), statistics.median(took))


def _collection(source: str) -> str:
    """A book is a part of its library."""
    return source.partition("/")[0]


def _origin(source: str) -> str:
    """The data set behind a tag: its test part is no source of its own."""
    return _collection(source).removesuffix("-test").removesuffix("-train")


@dataclass(frozen=True)
class TaskTraining:
    """How a detector came about: `examples` by source, `left_out` the accuracy on sources left out by strength."""

    command: str
    date: str
    corpus: str  # its fingerprint
    examples: Mapping[str, int]
    left_out: Mapping[float, float]
    strength: float  # inverse regularisation, as chosen
    temperature: float  # divides scores


def card_path(weights: Path) -> Path:
    """Where the card of a detector lies: beside it."""
    return weights.with_suffix(".md")


def digest(weights: bytes) -> str:
    """What ties a card to the file of a detector."""
    return hashlib.blake2b(weights, digest_size=12).hexdigest()


def task_card(tasks: Sequence[str], least: float, weights: bytes, training: TaskTraining, figures: TaskFigures) -> str:
    """The card as Markdown. `least` is the probability below which no task is named."""
    theirs = {source: count for source, count in training.examples.items() if source != PHRASINGS}
    ours = training.examples.get(PHRASINGS, 0)
    values = {"theirs": theirs, "ours": ours, "digest": digest(weights), "training": training, "figures": figures}
    return render("task_card", tasks=tasks, least=least, **values)

"""How often the task detector is right, source by source, and what it costs. Knows nothing of its training."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Sequence, Set
from dataclasses import dataclass

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table

from adaptspec.control.tasks import TaskDetector
from adaptspec.training.corpus import SYNTHETIC
from adaptspec.training.prompts import Prompt

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
        """Share of prompts whose task was named rightly; unknown is not right."""
        return self.right / self.prompts


def score_sources(detector: TaskDetector, prompts: Sequence[Prompt], trained_on: Collection[str]) -> list[SourceScore]:
    """One score per task and source. `trained_on` are the source tags of the training examples."""
    known = {_origin(source) for source in trained_on}
    found: defaultdict[tuple[str, str], list[str | None]] = defaultdict(list)
    for prompt in prompts:
        found[prompt.task, _collection(prompt.source)].append(detector.detect(prompt.text).task)
    return [
        SourceScore(task, source, _kind(source, known), len(said), said.count(task), said.count(None))
        for (task, source), said in sorted(found.items())
    ]


def measure_tasks(detector: TaskDetector, prompts: Sequence[Prompt], trained_on: Collection[str]) -> RenderableType:
    """A table of every source, the mean over sources of each kind, and the time a prompt takes."""
    scores = score_sources(detector, prompts, trained_on)
    table = Table("task", "source", "kind", "prompts", "right", "wrong", "unknown")
    for score in scores:
        wrong = score.prompts - score.right - score.unknown
        shares = (f"{count / score.prompts:.2f}" for count in (score.right, wrong, score.unknown))
        table.add_row(score.task, score.source, score.kind, str(score.prompts), *shares)
    lines = [_summary(kind, [score for score in scores if score.kind == kind]) for kind in KINDS]
    texts = [prompt.text for prompt in prompts]
    return Group(
        table, *filter(None, lines), f"time per prompt: {_median_seconds(detector, texts) * 1e3:.3f} ms (median)"
    )


def _summary(kind: str, scores: Sequence[SourceScore]) -> str:
    if not scores:
        return ""
    named = sum(score.prompts - score.unknown for score in scores)
    precision = sum(score.right for score in scores) / max(named, 1)
    mean = float(np.mean([score.accuracy for score in scores]))
    return f"{kind}: {mean:.3f} right (mean over {len(scores)} sources); of tasks named, {precision:.3f} right"


def _median_seconds(detector: TaskDetector, texts: Sequence[str]) -> float:
    took = []
    for text in texts:
        start = time.perf_counter()
        detector.detect(text)
        took.append(time.perf_counter() - start)
    return float(np.median(took))


def _kind(source: str, known: Set[str]) -> str:
    if source == SYNTHETIC:
        return KINDS[0]
    return KINDS[1] if _origin(source) in known else KINDS[2]


def _collection(source: str) -> str:
    """A book is a part of its library."""
    return source.partition("/")[0]


def _origin(source: str) -> str:
    """The data set behind a tag: its test part is no source of its own."""
    return _collection(source).removesuffix("-test").removesuffix("-train")

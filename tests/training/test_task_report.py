"""The accuracy report: what counts as right, and which sources count as never seen."""

from __future__ import annotations

import numpy as np

from adaptspec.control.tasks import SIZE, TaskDetector, ngrams
from adaptspec.training.prompts import Prompt
from adaptspec.training.task_report import KINDS, score_sources


def _detector() -> TaskDetector:
    """Says code where it reads `def`, story where it reads `once`, and is not sure of anything else."""
    weights = np.zeros((SIZE, 2), np.int8)
    weights[ngrams("def"), 0] = 100
    weights[ngrams("once"), 1] = 100
    return TaskDetector(("code", "story"), weights, np.full(2, 0.05, np.float32), np.zeros(2, np.float32))


def test_unknown_is_not_right_and_sources_are_told_apart() -> None:
    """The test part of a data set is no new source, nor is a book of a known library; other tags are."""
    prompts = [
        Prompt("code", "humaneval", "def"),
        Prompt("code", "humaneval", "once"),
        Prompt("code", "synthetic", "def"),
        Prompt("story", "library/book-one", "once"),
        Prompt("story", "library/book-two", "once"),
        Prompt("story", "tales-test", "def"),
    ]
    scores = score_sources(_detector(), prompts, {"library", "tales-train", "synthetic"})
    found = {(s.task, s.source): (s.kind, s.prompts, s.right, s.unknown) for s in scores}
    assert found == {
        ("code", "humaneval"): (KINDS[2], 2, 1, 0),
        ("code", "synthetic"): (KINDS[0], 1, 1, 0),
        ("story", "library"): (KINDS[1], 2, 2, 0),
        ("story", "tales-test"): (KINDS[1], 1, 0, 0),
    }
    assert scores[0].accuracy == 0.5

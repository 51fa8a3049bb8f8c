"""What the task detector learns from: every source a little, every task alike, the same every time."""

from __future__ import annotations

import random
import re
from collections import Counter
from pathlib import Path

import pytest

from adaptspec.control.tasks import TASKS
from adaptspec.errors import CorpusError
from adaptspec.training.corpus import Record, read_corpus
from adaptspec.training.task_examples import PHRASINGS, fillings, phrase, task_examples, wordings


def test_sources_are_capped_and_drawn_the_same_every_time(corpus_path: Path) -> None:
    """A large source must not decide what a task is."""
    records = read_corpus(corpus_path).train
    examples = task_examples(records, per_source=20, phrased=5)
    sizes = Counter((example.task, example.source) for example in examples)
    assert sizes == {
        **{(task, PHRASINGS): 5 for task in TASKS},
        **{(task, source): 20 for task in ("chat", "story") for source in ("svamp", "synthetic")},
    }
    assert examples == task_examples(records, per_source=20, phrased=5)
    assert examples != task_examples(records, 1, per_source=20, phrased=5)


def test_a_corpus_of_other_tasks_is_refused() -> None:
    """The message names the tasks there are."""
    with pytest.raises(CorpusError, match="translate"):
        task_examples([Record("poetry", "mine", None, "roses are red")])


@pytest.mark.parametrize("task", TASKS)
def test_every_slot_is_filled(task: str) -> None:
    """Also when the corpus has nothing to fill it with."""
    rng, slots = random.Random(0), fillings([])
    texts = {phrase(rng.choice(wordings()[task]), slots, rng) for _ in range(300)}
    assert len(texts) > 20
    assert not [text for text in texts if not text.strip() or re.search(rf"\{{({'|'.join(slots)}|turns)\}}", text)]

"""The recipe of the task detector: its prompts are the same every time, and its card is of the file that ships."""

from __future__ import annotations

import random
import re
from collections import Counter
from pathlib import Path

import pytest
from rich.console import Console

from adaptspec.control.task_detector import SHIPPED, TaskDetector
from adaptspec.control.tasks import TASKS
from adaptspec.errors import CorpusError
from adaptspec.training.corpus import Prompt, Record, read_corpus
from examples.recipes.tasks.__main__ import digest, train_shipped
from examples.recipes.tasks.prompts import PHRASINGS, fillings, phrase, task_examples, wordings


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
        task_examples([Record((), "roses are red", "poetry")])


@pytest.mark.parametrize("task", TASKS)
def test_every_slot_is_filled(task: str) -> None:
    """Also when the corpus has nothing to fill it with."""
    rng, slots = random.Random(0), fillings([])
    texts = {phrase(rng.choice(wordings()[task]), slots, rng) for _ in range(300)}
    assert len(texts) > 20
    assert not [text for text in texts if not text.strip() or re.search(rf"\{{({'|'.join(slots)}|turns)\}}", text)]


def test_the_card_that_ships_is_of_the_weights_that_ship() -> None:
    """Weights that are committed without their card fail here."""
    assert digest(SHIPPED.read_bytes()) in SHIPPED.with_suffix(".md").read_text()


@pytest.mark.whole
def test_the_recipe_writes_a_detector_and_its_card(corpus_path: Path, tmp_path: Path) -> None:
    """Wordings alone teach the plain cases; the card tells sources apart by whether they were trained on."""
    prompts = [
        Prompt("translate", "elsewhere", "Translate to French: It is late."),
        Prompt("chat", "svamp", "the small red cat"),
        Prompt("story", "synthetic", "Tell me a bedtime story about a fox."),
    ]
    out = tmp_path / "tasks.npz"
    train_shipped(corpus_path, prompts, out, Console(quiet=True), per_source=10, phrased=25)
    assert TaskDetector.load(out).detect("Translate to French: It is late.").task == "translate"
    card = out.with_suffix(".md").read_text()
    for words in (
        digest(out.read_bytes()),
        "- real, source never seen: 1.000 right",
        "| translate | elsewhere | real, source never seen | 1 | 1.00 | 0.00 | 0.00 |",
    ):
        assert words in card

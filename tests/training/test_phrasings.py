"""Own wordings: every task has some, and every slot is filled."""

from __future__ import annotations

import random
import re

import pytest

from adaptspec.control.tasks import TASKS
from adaptspec.training.corpus import Record
from adaptspec.training.phrasings import Fillings, Phrasings

PHRASINGS = Phrasings.load()


@pytest.mark.parametrize("task", TASKS)
def test_every_slot_is_filled(task: str) -> None:
    """Also when the corpus has nothing to fill it with."""
    rng = random.Random(0)
    texts = {PHRASINGS.phrase(task, Fillings.of([]), rng) for _ in range(300)}
    slots = "|".join([*PHRASINGS.words, "passage", "sentence", "tale", "code", "json", "turns"])
    assert len(texts) > 20
    assert not [text for text in texts if not text.strip() or re.search(rf"\{{({slots})\}}", text)]


def test_pieces_come_from_the_tasks_that_have_them() -> None:
    """Code is not told as a tale."""
    story, code = "Once there was a fox. " * 20, "def f(): pass"
    fillings = Fillings.of([Record("story", "a", None, story), Record("code", "b", "Write f.", code)])
    assert fillings.passage == [story[:900]]
    assert fillings.code == [code]
    assert story.startswith(fillings.tale[0])

"""The accuracy report: what counts as right, and which sources count as never seen."""

from __future__ import annotations

from adaptspec.control.tasks import SHIPPED, TASKS
from adaptspec.training.task_report import (
    KINDS,
    SourceScore,
    TaskFigures,
    TaskTraining,
    card_path,
    digest,
    task_card,
)

TRAINING = TaskTraining(
    "adaptspec train tasks --corpus mine.jsonl",
    "2026-01-02",
    "0123abcd",
    {"gsm8k-train": 300, "my-notes": 12, "phrasings": 1500},
    {3.0: 0.71, 10.0: 0.734},
    10.0,
    1.25,
)
FIGURES = TaskFigures((SourceScore("math", "gsm8k-test", KINDS[1], 8, 6, 1),), 0.0004)


def test_the_card_that_ships_is_of_the_weights_that_ship() -> None:
    """Whoever trains the detector anew and commits only the weights is told here."""
    assert digest(SHIPPED.read_bytes()) in card_path(SHIPPED).read_text()


def test_the_card_says_from_what_how_and_how_well() -> None:
    card = task_card(TASKS, 0.5, b"weights", TRAINING, FIGURES)
    assert digest(b"weights") in card
    assert "adaptspec train tasks --corpus mine.jsonl" in card
    assert "On 2026-01-02" in card
    assert "MIT, (c) 2021 OpenAI | 300 |" in card
    assert "| my-notes | not known to the recipe |" in card
    assert "1,500 prompts from wordings of our own" in card
    assert "0.710 at 3, 0.734 at 10): 10; " in card
    assert "| math | gsm8k-test | real, source known | 8 | 0.75 | 0.12 | 0.12 |" in card
    assert "real, source known: 0.750 right (mean over 1 sources); of tasks named, 0.857 right" in card
    assert "time per prompt: 0.400 ms" in card

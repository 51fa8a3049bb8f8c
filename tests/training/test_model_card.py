"""The model card: sources with licences, the machine and the time, and nothing that was not measured."""

from __future__ import annotations

from adaptspec.training.model_card import model_card
from adaptspec.training.report import LossFigures, PairReport, ReportSize
from adaptspec.training.run_record import RunRecord, Stage
from adaptspec.training.settings import PairSettings

REPORT = PairReport(5_867_776, 734_592, ReportSize(), (LossFigures("chat", False, 99, 1.234, 2.341),), (), ())
RECORD = RunRecord(
    PairSettings().identity,
    "0123abcd",
    {"gsm8k-train": 7472, "my-notes": 12},
    "CPU (2 threads)",
    {"target": Stage(84.0, 12_700_000), "draft": Stage(24.0, 9_000_000)},
)


def test_the_card_says_on_what_and_how_long() -> None:
    """Whoever reads the figures must be able to judge them."""
    card = model_card(RECORD, REPORT)
    assert "On CPU (2 threads)" in card
    assert "target: 84 minutes, 12.7 million tokens" in card
    assert "draft: 24 minutes, 9.0 million tokens" in card
    assert "5,867,776" in card
    assert "| chat | real | 99 | 1.23 | 2.34 |" in card


def test_only_the_sources_of_the_corpus_are_listed_and_unknown_ones_say_so() -> None:
    """Nobody else's corpus may be credited to, or blamed on, ours."""
    card = model_card(RECORD, REPORT)
    assert "MIT, (c) 2021 OpenAI" in card
    assert "7,472" in card
    assert "| my-notes | not known to the recipe |" in card
    assert "Tatoeba" not in card

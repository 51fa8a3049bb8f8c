"""The report: measured on a tiny pair, readable as JSON and as Markdown."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from adaptspec.training.corpus import Prompt, Record
from adaptspec.training.pair_report import ALL, LossFigures, PairReport, ReportSize, model_card, report_pair
from adaptspec.training.pair_settings import PairSettings, RunRecord, Stage

HELD_OUT = [Record("chat", "svamp", "Hi there", "Hello"), Record("chat", "synthetic", None, "Once upon a time")]
PROMPTS = [
    Prompt("chat", "synthetic", "Hi"),
    Prompt("chat", "svamp", "How are you?"),
    Prompt("code", "mbpp", "x = 1"),
    Prompt("long", "mbpp", "far too long for the context " * 20),
]


@pytest.fixture(scope="module")
def report(target_path: Path, draft_path: Path) -> PairReport:
    """One report for all tests here."""
    size = ReportSize(prompts_per_task=2, max_tokens=12, sample_tokens=8)
    return report_pair(target_path, draft_path, HELD_OUT, PROMPTS, Console(quiet=True), size=size)


def test_every_usable_task_and_all_together_are_measured(report: PairReport) -> None:
    """A task whose prompts are all too long is left out, not guessed."""
    assert [figures.task for figures in report.acceptance] == ["chat", "code", ALL]
    chat, code, pooled = report.acceptance
    assert chat.agreement_synthetic is not None
    assert code.agreement_synthetic is None
    assert pooled.prompts == chat.prompts + code.prompts == 3


def test_a_pair_can_be_reported_without_any_prompt(target_path: Path, draft_path: Path) -> None:
    """A corpus of running text has no prompts to measure acceptance on."""
    report = report_pair(target_path, draft_path, HELD_OUT, [], Console(quiet=True), size=ReportSize(sample_tokens=2))
    assert report.acceptance == ()
    assert "| chat | real |" in report.to_markdown()


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

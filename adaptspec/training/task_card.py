"""The card of a task detector: what it is, what it was trained on, how often it is right, where it is not.

Written from what the training did and the report measured, in the same run, and tied to the weights by their digest:
a card beside other weights can be told. Knows no training and no detector.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from adaptspec.training.data_sources import source_table
from adaptspec.training.phrasings import PHRASINGS
from adaptspec.training.task_report import TaskFigures

INTRODUCTION = """\
# The task detector

Reads the task of a request off its prompt, so that what was learned of one task serves the next request of it. A linear
model: hashed character n-grams, logistic regression, stored as plain arrays with a byte per weight. It names one of
{tasks},
or none where it gives the likeliest less than {least:g}. Clients that know their task say so instead."""

LIMITS = """\
## Limits

- English prompts of the kinds above; other languages, long documents and mixed tasks are guesses.
- It is wrong most on sources unlike those it was trained on: read their figures, not the synthetic ones.
- A wrong task costs speed only, unless a policy makes a task lossy: text is verified exactly whatever the task.
- It learns how people ask, and from texts of others; nothing was done about bias, and nothing about people should be
  decided by it."""


@dataclass(frozen=True)
class TaskTraining:
    """How a detector came about. `examples` counts them by source; `left_out` is the accuracy on sources left out,
    by strength (inverse regularisation), the `strength` chosen and the temperature that divides scores.
    """

    command: str
    date: str
    corpus: str  # its fingerprint
    examples: Mapping[str, int]
    left_out: Mapping[float, float]
    strength: float
    temperature: float


def card_path(weights: Path) -> Path:
    """Where the card of a detector lies: beside it."""
    return weights.with_suffix(".md")


def digest(weights: bytes) -> str:
    """What ties a card to the file of a detector."""
    return hashlib.blake2b(weights, digest_size=12).hexdigest()


def task_card(tasks: Sequence[str], least: float, weights: bytes, training: TaskTraining, figures: TaskFigures) -> str:
    """The card as Markdown. `least` is the probability below which no task is named."""
    parts = [
        INTRODUCTION.format(tasks=", ".join(tasks), least=least),
        f"This is the card of the weights with the digest `{digest(weights)}`.",
        _how(training),
        _data(training.examples),
        _figures(figures),
        LIMITS,
    ]
    return "\n\n".join(parts) + "\n"


def _how(training: TaskTraining) -> str:
    tried = ", ".join(f"{accuracy:.3f} at {strength:g}" for strength, accuracy in training.left_out.items())
    return (
        f"## How it was trained\n\nOn {training.date}, with\n\n```\n{training.command}\n```\n\n"
        f"on the corpus with the fingerprint `{training.corpus}`: some hundred prompts of each source at most, as they "
        "are and as clients may wrap them, and wordings of our own. Tasks count alike, and sources within a task. "
        f"Regularisation was chosen by answers on sources left out of training (right: {tried}): "
        f"{training.strength:g}; so was the temperature of the probabilities, {training.temperature:.2f}."
    )


def _data(examples: Mapping[str, int]) -> str:
    theirs = {source: count for source, count in examples.items() if source != PHRASINGS}
    return (
        "## Data, with thanks to its authors\n\nThe texts themselves are not part of this directory.\n\n"
        f"{source_table(theirs, 'prompts')}\n\n"
        f"And {examples.get(PHRASINGS, 0):,} prompts from wordings of our own."
    )


def _figures(figures: TaskFigures) -> str:
    lines = [f"- {line}" for line in figures.summaries]
    lines.append(f"- time per prompt: {figures.seconds * 1e3:.3f} ms (median, where it was trained)")
    rows = ["| task | source | kind | prompts | right | wrong | unknown |", "| --- " * 7 + "|"]
    for score in figures.scores:
        shares = " | ".join(f"{share:.2f}" for share in score.shares)
        rows.append(f"| {score.task} | {score.source} | {score.kind} | {score.prompts} | {shares} |")
    return "\n".join(["## How often it is right", "", *lines, "", *rows])

"""The prompts of the report: a small built-in set for samples, and reading or choosing those to measure on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from adaptspec.errors import CorpusError
from adaptspec.training.corpus import SYNTHETIC, Record, read_objects, strings

T = TypeVar("T")


@dataclass(frozen=True)
class Prompt:
    """One user message, with its task and where it comes from."""

    task: str
    source: str
    text: str

    @property
    def synthetic(self) -> bool:
        """Whether a program wrote it; such prompts flatter a pair that was trained on their templates."""
        return self.source == SYNTHETIC


SAMPLES = (
    Prompt("chat", "built-in", "User: Hello! I just came back from a long walk by the river.\nAssistant:"),
    Prompt("code", "built-in", 'def count_vowels(text):\n    """Return the number of vowels in the text."""\n'),
    Prompt("instruction", "built-in", "Explain how to make a cup of tea in three steps."),
    Prompt(
        "json",
        "built-in",
        "Extract the user as JSON.\nText: Clara Novak is 41 years old and works as a teacher. "
        "The email is clara.novak@example.com. The id is 3306 and the account is active.",
    ),
    Prompt(
        "math", "built-in", "A box holds 12 pencils. Mara buys 4 boxes and gives away 9 pencils. How many are left?"
    ),
    Prompt(
        "rag",
        "built-in",
        "Context:\n- Omar bought a blue kite for 18 dollars.\n- Lena went to the harbour on Friday.\n"
        "- Omar gave the lamp to Ines.\n\nHow much did Omar pay?",
    ),
    Prompt(
        "story", "built-in", "Continue the story:\nA small fox lived at the edge of the wood. One night it saw a light."
    ),
    Prompt(
        "summarize",
        "built-in",
        "Summarize the following text in one sentence.\n\nWe study how long a computer should search before it "
        "answers. Searching longer gives better answers but costs more time. We propose a rule that stops the search "
        "as soon as the expected gain is smaller than the cost, and show that it saves a third of the time.",
    ),
    Prompt("template", "built-in", "Make an HTML list of: apple, ladder, green tea, notebook, bicycle"),
    Prompt("translate", "built-in", "Translate English to French: The children are playing in the garden."),
)


def choose_prompts(path: Path | None, held_out: Sequence[Record]) -> list[Prompt]:
    """The prompts in `path`, or without one those of the held-out records that have a prompt."""
    if path is not None:
        return read_prompts(path)
    return [Prompt(r.task, r.source, r.prompt) for r in held_out if r.prompt is not None]


def read_prompts(path: Path) -> list[Prompt]:
    """Read a JSONL file of prompts (`task`, `source`, `prompt`; other fields are ignored), or every one in a folder.

    Raises:
        CorpusError: nothing is there, or a line is not a prompt.
    """
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    names = ("task", "source", "prompt")
    prompts = [Prompt(*strings(where, fields, names)) for file in files for where, fields in read_objects(file)]
    if not prompts:
        raise CorpusError(f"{path}: no prompts; give a JSONL file, or a folder of them, with task, source and prompt")
    return prompts


def spread(items: Sequence[T], count: int) -> list[T]:
    """At most `count` of the items, evenly spaced: files are often sorted by source."""
    if len(items) <= count:
        return list(items)
    return [items[i * len(items) // count] for i in range(count)]

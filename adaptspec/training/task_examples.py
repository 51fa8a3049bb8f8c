"""Prompts to train the task detector on: a few from every source, as they are and as clients may wrap them.

Knows the corpus and our own wordings; nothing of n-grams and of models.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from adaptspec.control.tasks import TASKS
from adaptspec.errors import CorpusError
from adaptspec.training.corpus import Record
from adaptspec.training.phrasings import PHRASINGS, Fillings, Phrasings

PER_SOURCE = 300  # examples of one task from one source, at most
PER_TASK_PHRASED = 1500

_SYSTEM = (
    "You are a helpful assistant.",
    "You are a careful and friendly assistant. Answer in the user's language.",
    "Answer briefly.",
    "Today is Monday. You are the assistant of a small company. Be polite and do not make things up.",
)
_BEFORE = ("Can you", "Could you please", "Please", "I want you to", "I need help.", "Hi!", "Hello,", "Task:", "Now")
_AFTER = ("Please.", "Thanks!", "Keep it short.", "Use at most 100 words.", "Be precise.", "Do not explain.", "Go on.")
_OPENING = (60, 500)  # running text is shown from its beginning up to a length in this range, in characters


@dataclass(frozen=True)
class Example:
    """A prompt whose task is known, and where it comes from."""

    task: str
    source: str
    text: str


def task_examples(
    records: Sequence[Record], seed: int = 0, *, per_source: int = PER_SOURCE, phrased: int = PER_TASK_PHRASED
) -> list[Example]:
    """The same examples for the same records and seed. Tasks we do not know are left out.

    Raises:
        CorpusError: no record has a task we know.
    """
    rng = random.Random(seed)
    groups: defaultdict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:
        if record.task in TASKS:
            groups[record.task, record.source].append(record)
    if not groups:
        raise CorpusError(f"no record has a task of {', '.join(TASKS)}; name one in each record's `task`")
    drawn = {key: rng.sample(group, min(per_source, len(group))) for key, group in sorted(groups.items())}
    examples = [
        Example(task, source, _wrapped(_prompt(record, rng), task, rng))
        for (task, source), group in drawn.items()
        for record in group
    ]
    phrasings = Phrasings.load()
    fillings = Fillings.of([record for group in drawn.values() for record in group])
    for task in TASKS:
        texts = [phrasings.phrase(task, fillings, rng) for _ in range(phrased)]
        examples += [Example(task, PHRASINGS, _wrapped(text, task, rng)) for text in texts]
    return examples


def example_weights(examples: Sequence[Example]) -> list[float]:
    """Weights of mean 1 with which every task counts the same, and within a task every source."""
    sizes = Counter((example.task, example.source) for example in examples)
    sources = Counter(task for task, _ in sizes)
    raw = [1.0 / (sources[e.task] * sizes[e.task, e.source]) for e in examples]
    mean = sum(raw) / len(raw)
    return [weight / mean for weight in raw]


def _prompt(record: Record, rng: random.Random) -> str:
    return record.completion[: rng.randint(*_OPENING)] if record.prompt is None else record.prompt


def _wrapped(text: str, task: str, rng: random.Random) -> str:
    """Speaker names must not mean chat, nor their absence anything else; manners and system messages mean nothing."""
    draw = rng.random()
    if task != "chat" and rng.random() < 0.15:
        text = f"{rng.choice(_BEFORE)} {text}"
    if task != "chat" and rng.random() < 0.1:
        text = f"{text} {rng.choice(_AFTER)}"
    if task == "chat" and draw < 0.25:
        text = text.replace("User: ", "").replace("Assistant:", "").strip()
    elif task != "chat" and draw < 0.15:
        text = f"User: {text}\nAssistant:"
    return f"{rng.choice(_SYSTEM)}\n{text}" if rng.random() < 0.12 else text

"""Prompts to train the task detector on: a few from every source, as they are and as clients may wrap them.

In addition, wordings of every task are filled with passages of the corpus: how people ask matters, not the
subject. The corpus has some tasks from one or two sources only, of which a classifier would learn the subjects.
"""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

from adaptspec.control.tasks import TASKS
from adaptspec.errors import CorpusError
from adaptspec.training.corpus import Record

PER_SOURCE = 300  # examples of one task from one source, at most
PER_TASK_PHRASED = 1500
PHRASINGS = "phrasings"  # the source of filled wordings
_WORDINGS = Path(__file__).parent / "phrasings.yaml"
_SLOT = re.compile(r"\{(\w+)\}")
_TURNS = (1, 1, 1, 2, 3)  # how many turns of a conversation there are, and how often

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
    """A prompt with its task and source."""

    task: str
    source: str
    text: str


def task_examples(
    records: Sequence[Record], seed: int = 0, *, per_source: int = PER_SOURCE, phrased: int = PER_TASK_PHRASED
) -> list[Example]:
    """The same examples for the same records and seed. Records of other tasks are left out.

    Raises:
        CorpusError: no record has one of `TASKS`.
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
    slots = fillings([record for group in drawn.values() for record in group])
    for task in TASKS:
        texts = [phrase(rng.choice(wordings()[task]), slots, rng) for _ in range(phrased)]
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


def wordings() -> Mapping[str, Sequence[str]]:
    """Wordings of each task, with slots such as {topic}."""
    return _phrasings()["wordings"]


def fillings(records: Sequence[Record]) -> dict[str, Sequence[str]]:
    """Texts for the slots of wordings: listed words, and pieces of records of the tasks that have them."""
    running = [r.completion[:900] for r in records if r.task == "story" and len(r.completion) > 200]
    papers = [r.prompt.partition("\n")[2].strip()[:1200] for r in records if r.prompt and r.task == "summarize"]
    pieces = {
        "passage": [*running, *papers] or ["It was a long day."],
        "sentence": [r.completion[:200] for r in records if r.task == "translate"] or ["It is late."],
        "tale": [text[: 120 + 10 * (i % 40)] for i, text in enumerate(running)] or ["There was a fox."],
        "code": [r.completion[:500] for r in records if r.task == "code"] or ["x = 1"],
        "json": [r.completion[:400] for r in records if r.task == "json"] or ["{}"],
    }
    return {**pieces, **_phrasings()["words"]}


def phrase(wording: str, slots: Mapping[str, Sequence[str]], rng: random.Random) -> str:
    """A wording with its slots filled at random."""

    def fill(slot: re.Match[str]) -> str:
        if slot[1] == "turns":
            spoken = slots["smalltalk"]
            turns = range(rng.choice(_TURNS) - 1)
            return "".join(f"User: {rng.choice(spoken)}\nAssistant: {rng.choice(spoken)}\n" for _ in turns)
        return rng.choice(slots[slot[1]])

    return _SLOT.sub(fill, wording)


@cache
def _phrasings() -> dict[str, dict[str, list[str]]]:
    read: dict[str, dict[str, list[str]]] = yaml.safe_load(_WORDINGS.read_text(encoding="utf-8"))
    return read

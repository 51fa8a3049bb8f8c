"""Own wordings of every task, filled with passages of the corpus: how people ask matters, what about does not.

The corpus knows some tasks from one or two sources only, so that a classifier would learn their subjects instead. The
wordings are in `phrasings.yaml`. Knows nothing of classifiers.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from adaptspec.training.corpus import Record

PHRASINGS = "phrasings"  # the source tag of these prompts
_FILE = Path(__file__).parent / "phrasings.yaml"
_SLOT = re.compile(r"\{(\w+)\}")
_TURNS = (1, 1, 1, 2, 3)  # how many turns of a conversation there are, and how often


@dataclass(frozen=True)
class Fillings:
    """Pieces of the corpus that fill the slots of a wording."""

    passage: Sequence[str]
    sentence: Sequence[str]
    tale: Sequence[str]
    code: Sequence[str]
    json: Sequence[str]

    @classmethod
    def of(cls, records: Sequence[Record]) -> Fillings:
        """Cut the pieces out of records, each kind from the tasks that have it."""
        running = [r.completion[:900] for r in records if r.task == "story" and len(r.completion) > 200]
        papers = [r.prompt.partition("\n")[2].strip()[:1200] for r in records if r.prompt and r.task == "summarize"]
        return cls(
            passage=[*running, *papers] or ["It was a long day."],
            sentence=[r.completion[:200] for r in records if r.task == "translate"] or ["It is late."],
            tale=[text[: 120 + 10 * (i % 40)] for i, text in enumerate(running)] or ["There was a fox."],
            code=[r.completion[:500] for r in records if r.task == "code"] or ["x = 1"],
            json=[r.completion[:400] for r in records if r.task == "json"] or ["{}"],
        )


@dataclass(frozen=True)
class Phrasings:
    """`wordings` of each task have slots such as {topic}, which one of the `words` or a piece of the corpus fills."""

    words: Mapping[str, Sequence[str]]
    wordings: Mapping[str, Sequence[str]]

    @classmethod
    def load(cls) -> Phrasings:
        """Those that ship."""
        return cls(**yaml.safe_load(_FILE.read_text(encoding="utf-8")))

    def phrase(self, task: str, fillings: Fillings, rng: random.Random) -> str:
        """One prompt for `task`: a wording drawn at random, its slots filled."""
        wording = rng.choice(self.wordings[task])
        return _SLOT.sub(lambda slot: self._fill(slot.group(1), fillings, rng), wording)

    def _fill(self, slot: str, fillings: Fillings, rng: random.Random) -> str:
        if slot == "turns":
            spoken = self.words["smalltalk"]
            turns = range(rng.choice(_TURNS) - 1)
            return "".join(f"User: {rng.choice(spoken)}\nAssistant: {rng.choice(spoken)}\n" for _ in turns)
        if slot in self.words:
            return rng.choice(self.words[slot])
        return str(rng.choice(getattr(fillings, slot)))

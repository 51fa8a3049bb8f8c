"""Reading a training corpus: JSONL records (plain or .xz), split, weighted and written as chat text.

Knows the record format and nothing of tokens.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from adaptspec.errors import CorpusError
from adaptspec.training.jsonl import read_objects, strings

USER, ASSISTANT, END = "<|user|>", "<|assistant|>", "<|end|>"
SPECIAL_TOKENS = ("<|pad|>", END, USER, ASSISTANT)
SYNTHETIC = "synthetic"  # the source tag of text made by a program

# A system message is folded into the first user turn: the corpus has no system turns, so a
# token of its own would be one the pair never saw.
CHAT_TEMPLATE = (
    "{%- set system = namespace(text='') -%}"
    "{%- for m in messages -%}"
    "{%- if m['role'] == 'system' or m['role'] == 'developer' -%}"
    "{%- set system.text = system.text + m['content'] + '\\n\\n' -%}"
    "{%- elif m['role'] == 'user' -%}"
    "{{- '<|user|>\\n' + system.text + m['content'] + '<|end|>\\n' -}}{%- set system.text = '' -%}"
    "{%- elif m['role'] == 'assistant' -%}"
    "{{- '<|assistant|>\\n' + m['content'] + '<|end|>\\n' -}}"
    "{%- else -%}{{- raise_exception('role must be system, user or assistant, not ' + m['role']) -}}"
    "{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>\\n' -}}{%- endif -%}"
)


@dataclass(frozen=True)
class Record:
    """One training record: a prompt with its completion, or (prompt None) running text."""

    task: str
    source: str
    prompt: str | None
    completion: str

    @property
    def synthetic(self) -> bool:
        """Whether a program wrote it: held-out records of that kind share templates with the training text."""
        return self.source == SYNTHETIC

    @property
    def text(self) -> str:
        """The record as the model sees it, closed by the end token."""
        if self.prompt is None:
            return f"{self.completion}{END}\n"
        return f"{USER}\n{self.prompt}{END}\n{ASSISTANT}\n{self.completion}{END}\n"


@dataclass(frozen=True)
class Corpus:
    """Records to train on, and records kept back for the report. `fingerprint` tells corpora apart.

    `tags` are the sources of all records that were read, also of those that no record is kept of.
    """

    train: list[Record]
    held_out: list[Record]
    fingerprint: str
    tags: tuple[str, ...]

    @property
    def sources(self) -> dict[str, int]:
        """Number of training records of each source, by its tag."""
        return dict(sorted(Counter(record.source for record in self.train).items()))


def read_corpus(
    path: Path,
    source_weights: Mapping[str, float] | None = None,
    held_out_share: float = 0.005,
) -> Corpus:
    """Read every record of a JSONL file.

    `source_weights` maps a record's `src` to the share of its records to keep (0..1). Both the
    split and the thinning depend on the record's text alone, so a resumed run sees the same data.

    Raises:
        CorpusError: the file is missing or a line is not a record.
    """
    weights = source_weights or {}
    train: list[Record] = []
    held_out: list[Record] = []
    tags: set[str] = set()
    everything = hashlib.blake2b(digest_size=8)
    for record in (_record(where, fields) for where, fields in read_objects(path)):
        digest = hashlib.blake2b(record.text.encode(), digest_size=8).digest()
        everything.update(digest)
        tags.add(record.source)
        draw = int.from_bytes(digest, "big") / 2**64
        if draw < held_out_share:
            held_out.append(record)
        elif (draw - held_out_share) / (1 - held_out_share) < weights.get(record.source, 1.0):
            train.append(record)
    if not train:
        raise CorpusError(f"{path}: no records to train on; give a JSONL file of prompt/completion or text")
    return Corpus(train, held_out, everything.hexdigest(), tuple(sorted(tags)))


def _record(where: str, fields: Mapping[str, object]) -> Record:
    if "text" in fields:
        task, source, text = strings(where, fields, ("task", "src", "text"))
        return Record(task, source, None, text)
    if "prompt" not in fields and "completion" not in fields:
        raise CorpusError(f"{where}: a line needs prompt and completion, or text")
    return Record(*strings(where, fields, ("task", "src", "prompt", "completion")))

"""Reading JSONL: the records of a training corpus, split, weighted and written as chat text; prompts to measure on."""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from adaptspec.errors import CorpusError
from adaptspec.files import open_file

USER, ASSISTANT, END = "<|user|>", "<|assistant|>", "<|end|>"
SPECIAL_TOKENS = ("<|pad|>", END, USER, ASSISTANT)
SYNTHETIC = "synthetic"  # the source tag of text made by a program: held-out records share templates with the others
T = TypeVar("T")
BUILT_IN = Path(__file__).parent / "prompts.jsonl"  # a prompt of each task, in the form that users give theirs


@dataclass(frozen=True)
class Record:
    """One training record: a prompt with its completion, or (prompt None) running text."""

    task: str
    source: str
    prompt: str | None
    completion: str

    @property
    def synthetic(self) -> bool:
        return self.source == SYNTHETIC

    @property
    def text(self) -> str:
        """The record in the bundled pair's markup, closed by its end token."""
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
        return dict(sorted(Counter(record.source for record in self.train).items()))


def read_corpus(path: Path, source_weights: Mapping[str, float] | None = None, held_out_share: float = 0.005) -> Corpus:
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


def read_objects(path: Path) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Every object of a JSONL file, plain or .xz, with where it stands (`file:line`). Blank lines are skipped.

    Raises:
        CorpusError: the file is missing or damaged, or a line is not a JSON object.
    """
    try:
        with (
            open(open_file(path), "rb") as file,
            lzma.LZMAFile(file) if path.suffix == ".xz" else file as plain,
            io.TextIOWrapper(plain, encoding="utf-8-sig") as lines,
        ):
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield f"{path}:{number}", _object(line, f"{path}:{number}")
    except (OSError, EOFError, lzma.LZMAError, UnicodeDecodeError) as error:
        raise CorpusError(f"{path}: cannot be read ({error}); give a whole JSONL file, plain or .xz") from error


def strings(where: str, fields: Mapping[str, object], names: Sequence[str]) -> list[str]:
    """The values of `names`, in that order.

    Raises:
        CorpusError: one is missing, is not a string, or is not text that can be encoded.
    """
    missing = [name for name in names if name not in fields]
    if missing:
        raise CorpusError(f"{where}: a line needs {', '.join(missing)}")
    values = []
    for name in names:
        value = fields[name]
        if not isinstance(value, str):
            raise CorpusError(f"{where}: {name} must be a string, not {type(value).__name__}")
        if half := re.search("[\ud800-\udfff]", value):
            code = f"\\u{ord(half[0]):04x}"
            raise CorpusError(f"{where}: {name} holds {code}, half of a character; repair or delete the line")
        values.append(value)
    return values


def _object(line: str, where: str) -> Mapping[str, object]:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise CorpusError(f"{where}: not JSON ({error}); every line must be one JSON object") from error
    if not isinstance(fields, dict):
        raise CorpusError(f"{where}: a JSON {type(fields).__name__}; every line must be one JSON object")
    return fields


@dataclass(frozen=True)
class Prompt:
    """One user message, with its task and where it comes from."""

    task: str
    source: str
    text: str

    @property
    def synthetic(self) -> bool:
        return self.source == SYNTHETIC


def choose_prompts(path: Path | None, held_out: Sequence[Record]) -> list[Prompt]:
    """The prompts in `path`, or else those of the held-out records."""
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

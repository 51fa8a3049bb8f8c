"""Corpora: lines of conversations, prompts or texts to train on, and prompts to measure on."""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from adaptspec.control.tasks import OTHER
from adaptspec.errors import CorpusError
from adaptspec.files import open_file

SYNTHETIC = "synthetic"  # the source of text made by a program: held-out records share templates with the others
BUILT_IN = Path(__file__).parent / "prompts.jsonl"  # a prompt of each task
TEXT_FILES = (".txt", ".md")  # plain text, a record for each paragraph
HELD_OUT_SHARE, MAX_HELD_OUT_SHARE, WANTED_HELD_OUT = 0.005, 0.1, 64
T = TypeVar("T")


@dataclass(frozen=True)
class Record:
    """A conversation, or running text.

    `messages` are those of a conversation up to the last one of the user; without any, `completion` is running text.
    `completion` is the answer of the corpus, which is empty if there is none. `where` is the file and the line.
    """

    messages: tuple[Mapping[str, str], ...]
    completion: str
    task: str = OTHER
    source: str = ""
    where: str = field(default="", compare=False)

    @property
    def prompt(self) -> str | None:
        """The last message of the user; None for running text."""
        return self.messages[-1]["content"] if self.messages else None

    @cached_property
    def digest(self) -> bytes:
        """Eight bytes that depend on the content alone."""
        content = json.dumps([self.messages, self.completion, self.task, self.source])
        return hashlib.blake2b(content.encode(), digest_size=8).digest()

    @property
    def draw(self) -> float:
        """A number in [0, 1) that depends on the content alone."""
        return int.from_bytes(self.digest, "big") / 2**64


@dataclass(frozen=True)
class Corpus:
    """Records to train on, and records held out for measuring. `fingerprint` identifies the whole file."""

    train: list[Record]
    held_out: list[Record]
    fingerprint: str

    @property
    def sources(self) -> dict[str, int]:
        """The number of records to train on by source."""
        return dict(sorted(Counter(record.source for record in self.train).items()))


def read_corpus(path: Path) -> Corpus:
    """Read a JSONL file (plain or .xz) or a text file, and hold out 0.5 % of it, but up to 64 records of small ones.

    A line of JSONL has `messages` (objects with role and content), or `prompt` and perhaps `completion`, or `text`;
    `task` and `src` may be given as well. Which records are held out depends on their content alone, so a resumed run
    has the same ones.

    Raises:
        CorpusError: the file cannot be read, or a line is not a record.
    """
    records = list(_paragraphs(path) if path.suffix in TEXT_FILES else _records(path))
    everything = hashlib.blake2b(digest_size=8)
    for record in records:
        everything.update(record.digest)
    draws = sorted(record.draw for record in records)
    count = max(len(records) * HELD_OUT_SHARE, min(len(records) * MAX_HELD_OUT_SHARE, WANTED_HELD_OUT))
    limit = draws[int(count)] if draws else 0.0
    train = [record for record in records if record.draw >= limit]
    if not train:
        raise CorpusError(f"{path}: no records to train on; give lines with messages, prompt or text")
    return Corpus(train, [record for record in records if record.draw < limit], everything.hexdigest())


def _records(path: Path) -> Iterator[Record]:
    for where, fields in read_objects(path):
        labels = {"task": fields.get("task", OTHER), "src": fields.get("src", fields.get("source", ""))}
        task, source = strings(where, labels, ("task", "src"))
        if "messages" in fields:
            messages = _messages(where, fields["messages"])
            answered = messages[-1]["role"] == "assistant"
            completion = messages[-1]["content"] if answered else ""
            messages = messages[:-1] if answered else messages
        elif "prompt" in fields:
            prompt, completion = strings(where, {"completion": "", **fields}, ("prompt", "completion"))
            messages = ({"role": "user", "content": prompt},)
        elif "text" in fields:
            (completion,), messages = strings(where, fields, ("text",)), ()
        else:
            raise CorpusError(f"{where}: a line needs messages, or prompt, or text")
        yield Record(messages, completion, task, source, where)


def _messages(where: str, value: object) -> tuple[Mapping[str, str], ...]:
    """Roles and contents of a conversation; other fields are skipped."""
    if not isinstance(value, list) or not all(isinstance(message, dict) for message in value):
        raise CorpusError(f'{where}: messages must be a list of objects such as {{"role": "user", "content": "Hi"}}')
    messages = []
    for i, message in enumerate(value):
        role, content = strings(f"{where}: messages[{i}]", message, ("role", "content"))
        messages.append({"role": role, "content": content})
    if not any(message["role"] == "user" for message in messages):
        raise CorpusError(f"{where}: messages need one of the user, which the model answers")
    if messages[-1]["role"] not in ("user", "assistant"):
        raise CorpusError(f"{where}: the last message must be of the user or the assistant, not {messages[-1]['role']}")
    return tuple(messages)


def _paragraphs(path: Path) -> Iterator[Record]:
    try:
        with open(open_file(path), encoding="utf-8-sig") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise CorpusError(f"{path}: cannot be read ({error}); give a text file in UTF-8") from error
    paragraphs = (paragraph.strip() for paragraph in re.split(r"\n\s*\n", text))
    yield from (Record((), paragraph, where=str(path)) for paragraph in paragraphs if paragraph)


def read_objects(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
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


def _object(line: str, where: str) -> Mapping[str, Any]:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise CorpusError(f"{where}: not JSON ({error}); every line must be one JSON object") from error
    if not isinstance(fields, dict):
        raise CorpusError(f"{where}: a JSON {type(fields).__name__}; every line must be one JSON object")
    return fields


@dataclass(frozen=True)
class Prompt:
    """One user message, with its task and source."""

    task: str
    source: str
    text: str

    @property
    def synthetic(self) -> bool:
        return self.source == SYNTHETIC


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

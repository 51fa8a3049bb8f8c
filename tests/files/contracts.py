"""The mechanism of all contracts: a recorded document, declared exceptions, and a readable difference.

A contract is a JSON document in `goldens/`. A rewrite of the package must reproduce it. A document is compared leaf by
leaf: the path of a leaf is the keys that lead to it, joined by ` > `.

Intended changes are declared in `goldens/exceptions.json`, a list of objects:

    {"contract": "names", "at": "metrics > adaptspec_old_name", "gone": true, "reason": "..."}
    {"contract": "commands", "at": "serve > --port > default", "becomes": 8080, "reason": "..."}
    {"contract": "refusals", "at": "* > message", "replace": ["old words", "new words"], "reason": "..."}

`at` is the path of one leaf, or of all leaves below it; `*` in it stands for any text. The comparison fails for a
difference that no exception declares, and for an exception that changes nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, model_validator

GOLDENS = Path(__file__).with_name("goldens")
EXCEPTIONS = GOLDENS / "exceptions.json"
SEPARATOR = " > "
WIDTH = 120

Document: TypeAlias = dict[str, Any]
Leaves: TypeAlias = dict[str, Any]
Place = TypeVar("Place")


@dataclass(frozen=True)
class Contract(Generic[Place]):
    """One recorded document.

    `record` returns the document of today's code. It is passed where to record, and the recorded document, from which
    it reads what to try, such as the requests whose refusals are recorded. `lines_at`: see `formatted`.
    """

    name: str
    record: Callable[[Place, Document], Awaitable[Document]]
    lines_at: int | None = None

    @property
    def path(self) -> Path:
        return GOLDENS / f"{self.name}.json"

    def recorded(self) -> Document:
        """The document in `goldens/`; empty before it was recorded for the first time."""
        found: Document = json.loads(self.path.read_text(encoding="utf-8")) if self.path.exists() else {}
        return found

    def write(self, document: Document) -> None:
        text = formatted(document, self.lines_at) + "\n"
        self.path.write_bytes(text.encode("utf-8", "backslashreplace"))  # lone surrogates stay JSON escapes


class ExceptionEntry(BaseModel):
    """One intended change: exactly one of `gone`, `becomes` and `replace`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    contract: str
    at: str
    reason: str
    gone: Literal[True] | None = None
    becomes: Any = None
    replace: tuple[str, str] | None = None

    @model_validator(mode="after")
    def _has_one_change(self) -> ExceptionEntry:
        if len(self.model_fields_set & {"gone", "becomes", "replace"}) != 1 or not self.reason.strip():
            raise ValueError("an exception has a reason, and one of gone, becomes and replace")
        return self

    def apply(self, leaves: Leaves) -> Leaves:
        """The leaves after the intended change."""
        pattern = re.compile(".*".join(map(re.escape, self.at.split("*"))) + f"(?:{SEPARATOR}.*)?", re.DOTALL)
        matched = {path for path in leaves if pattern.fullmatch(path)}
        if self.replace is not None:
            old, new = self.replace
            return {p: v.replace(old, new) if p in matched and isinstance(v, str) else v for p, v in leaves.items()}
        left = {path: value for path, value in leaves.items() if path not in matched}
        return left if self.gone else left | flattened(self.becomes, self.at)


def read_exceptions(path: Path = EXCEPTIONS) -> list[ExceptionEntry]:
    """The declared exceptions. Raises pydantic.ValidationError for an entry that is incomplete."""
    return [ExceptionEntry.model_validate(entry) for entry in json.loads(path.read_text(encoding="utf-8"))]


def compare(name: str, recorded: Document, found: Document, exceptions: list[ExceptionEntry]) -> list[str]:
    """What is wrong with today's document, a line for each leaf and each useless exception; empty if all is well."""
    expected, problems = flattened(recorded), []
    for entry in exceptions:
        if entry.contract == name:
            changed = entry.apply(expected)
            if changed == expected:
                problems.append(f"! the exception at {entry.at!r} changes nothing; remove it")
            expected = changed
    return problems + list(differences(expected, flattened(found)))


def differences(expected: Leaves, found: Leaves) -> Iterator[str]:
    """A block of lines for each leaf that differs: its path, the expected and the found value."""
    for path in sorted(expected.keys() | found.keys()):
        old, new = expected.get(path, _MISSING), found.get(path, _MISSING)
        if not _same(old, new):
            lines = [path, *(f"  {sign} {_shown(value)}" for sign, value in (("-", old), ("+", new)))]
            yield "\n".join(line for line in lines if line[4:] != _shown(_MISSING))


def flattened(value: Any, path: str = "") -> Leaves:
    """The leaves of a document by path. Empty objects and lists are leaves; items of lists are numbered."""
    items = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    leaves: Leaves = {}
    for key, inner in items:
        leaves |= flattened(inner, f"{path}{SEPARATOR}{key}" if path else str(key))
    return leaves if leaves or not path else {path: value}


def name_set(names: Iterable[str]) -> Document:
    """A set of names as a document: one that comes or goes is one difference, where in a list all behind it move."""
    return dict.fromkeys(sorted(names))


def formatted(value: Any, lines_at: int | None = None, depth: int = 0) -> str:
    """JSON with sorted keys: what fits into a line is on one line, so differences are readable.

    `lines_at`: at this depth, a value is on one line however long it is, and its keys keep their order.
    """
    line = json.dumps(value, ensure_ascii=False, sort_keys=lines_at is None)
    fits = depth == lines_at or (len(line) + depth <= WIDTH and depth > 0 and lines_at is None)
    if fits or not isinstance(value, dict | list) or not value:
        return line
    pad = " " * (depth + 1)
    if isinstance(value, dict):
        names = {key: json.dumps(key, ensure_ascii=False) for key in sorted(value)}
        parts = [f"{name}: {formatted(value[key], lines_at, depth + 1)}" for key, name in names.items()]
    else:
        parts = [formatted(inner, lines_at, depth + 1) for inner in value]
    opened, closed = "{}" if isinstance(value, dict) else "[]"
    return f"{opened}\n{pad}" + f",\n{pad}".join(parts) + f"\n{' ' * depth}{closed}"


_MISSING = object()


def _shown(value: Any) -> str:
    return "(missing)" if value is _MISSING else json.dumps(value, ensure_ascii=False)


def _same(old: Any, new: Any) -> bool:
    """Equal in value and in type: 1 is neither true nor 1.0."""
    return type(old) is type(new) and bool(old == new)

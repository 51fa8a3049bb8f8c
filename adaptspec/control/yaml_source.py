"""Reading one YAML file so that every value still knows its line and column.

Safe only: plain scalars, lists and mappings; bounded in size, depth and aliases. Knows nothing of policies.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
import yaml.reader

from adaptspec.errors import PolicyError
from adaptspec.files import open_file

# Far above any policy, and little enough that the worst file is refused in a fraction of a second.
MAX_BYTES = 64 * 1024
_MAX_VALUES = 5_000
_MAX_DEPTH = 24
_MOST_SHOWN = 10

_BOOLEAN = "tag:yaml.org,2002:bool"
_SCALARS = {f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float", "str")}


@dataclass(frozen=True, order=True)
class Problem:
    """One thing that is wrong, and where: line and column count from 1, `where` is the path in the data."""

    line: int
    column: int
    where: str
    message: str
    file: str

    def __str__(self) -> str:
        """`file:line:column: path: message`, on one line whatever the file holds."""
        text = f"{self.where + ': ' if self.where else ''}{self.message}"
        return f"{self.file}:{self.line}:{self.column}: {_printable(text)}"


def policy_error(problems: Sequence[Problem]) -> PolicyError:
    """One error for all problems of a file, a line each, in the order of the file; the first ten if there are more."""
    lines = [str(problem) for problem in sorted(set(problems))]
    more = len(lines) - _MOST_SHOWN
    return PolicyError("\n".join(lines[:_MOST_SHOWN] + ([f"... and {more} more"] if more > 0 else [])))


def shown(value: object) -> str:
    """A value as it may stand in a message."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


@dataclass(frozen=True)
class Source:
    """A parsed file: plain `data`, and where each path of it stands."""

    path: str
    data: object
    keys: dict[tuple[object, ...], yaml.Mark] = field(default_factory=dict)
    values: dict[tuple[object, ...], yaml.Mark] = field(default_factory=dict)

    def problem(self, where: Sequence[object], message: str, at_key: bool = False) -> Problem:
        """A problem at `where`: the nearest place that exists in the file, steps that do not are skipped."""
        here: tuple[object, ...] = ()
        for step in where:
            if (*here, step) in self.values:
                here = (*here, step)
        mark = (self.keys.get(here) if at_key else None) or self.values.get(here)
        return _at(self.path, mark, here, message)

    def error(self, where: Sequence[object], message: str, at_key: bool = False) -> PolicyError:
        """The same as an error of its own."""
        return PolicyError(str(self.problem(where, message, at_key)))


def read_yaml(path: Path) -> Source:
    """
    Raises:
        PolicyError: unreadable, too large, not YAML, or not plain data; says where.
    """
    return parse_yaml(read_text(path), str(path))


def read_text(path: Path) -> str:
    """
    Raises:
        PolicyError: unreadable, too large, or not text; says where.
    """
    try:
        with open(open_file(path), "rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise PolicyError(f"{path}: cannot be read ({reason}); check the path") from error
    if len(raw) > MAX_BYTES:
        raise _too_large(str(path))
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        place = _place(raw[: error.start].decode("latin-1"))
        raise PolicyError(f"{path}:{place}: not UTF-8 text; a policy is a YAML file") from error


def parse_yaml(text: str, name: str) -> Source:
    """The same for text already read; `name` stands for the file in errors.

    Raises:
        PolicyError: too large, not YAML, or not plain data; says where.
    """
    if len(text) > MAX_BYTES:
        raise _too_large(name)
    try:
        loader = _Loader(text)
    except yaml.reader.ReaderError as error:
        place, code = _place(text[: error.position]), f"U+{ord(text[error.position]):04X}"
        raise PolicyError(f"{name}:{place}: not YAML: {code} is not a printable character") from error
    try:
        node = loader.get_single_node()
        if node is None:
            raise PolicyError(f"{name}:1:1: the file is empty; start from one of the shipped policies")
        source = Source(name, None)
        data = _Builder(loader, source).build(node, (), 0)
        return Source(name, data, source.keys, source.values)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise PolicyError(str(_at(name, mark, (), f"not YAML: {error.problem or error.context}"))) from error
    except (ValueError, OverflowError) as error:
        # The scanner lets this one through for escapes such as "\UFFFFFFFF".
        mark = loader.get_mark()
        raise PolicyError(str(_at(name, mark, (), f"not YAML: no such character ({error})"))) from error
    finally:
        loader.dispose()


class _Loader(yaml.SafeLoader):
    """Refuses depth and sheer number while it reads, before memory or recursion could run out.

    As in YAML 1.2, which editors follow, only true and false are booleans: on, off, yes and no are words.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._count = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """See `yaml.composer.Composer`."""
        self._depth += 1
        self._count += 1
        if self._depth > _MAX_DEPTH or self._count > 2 * _MAX_VALUES:
            event: Any = self.peek_event()  # type: ignore[no-untyped-call]  # the stubs lack it
            raise yaml.MarkedYAMLError(problem=_too_many(), problem_mark=event.start_mark)
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        return node


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _BOOLEAN]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_BOOLEAN, re.compile("^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))


class _Builder:
    """Turns a node tree into plain data, counting every value an alias repeats."""

    def __init__(self, loader: yaml.SafeLoader, source: Source) -> None:
        self._loader = loader
        self._source = source
        self._count = 0

    def build(self, node: yaml.Node, path: tuple[object, ...], depth: int) -> object:
        self._count += 1
        if self._count > _MAX_VALUES or depth > _MAX_DEPTH:
            # Only aliases get here, and what they stand for is elsewhere: the top-level key that holds them is told.
            message = f"{_too_many()} (aliases count each time they are used)"
            mark = self._source.keys.get(path[:1], node.start_mark)
            raise PolicyError(str(_at(self._source.path, mark, path[:1], message)))
        self._source.values[path] = node.start_mark
        if isinstance(node, yaml.MappingNode) and node.tag == "tag:yaml.org,2002:map":
            return self._mapping(node, path, depth)
        if isinstance(node, yaml.SequenceNode) and node.tag == "tag:yaml.org,2002:seq":
            return [self.build(item, (*path, i), depth + 1) for i, item in enumerate(node.value)]
        return self._scalar(node, path)

    def _mapping(self, node: yaml.MappingNode, path: tuple[object, ...], depth: int) -> dict[object, object]:
        data: dict[object, object] = {}
        for key_node, value_node in node.value:
            key = self._scalar(key_node, path)
            if not isinstance(key, (str, int)) or isinstance(key, bool):
                raise self._problem(
                    key_node, path, f"the key {shown(key)} must be a word or a number; put it in quotes"
                )
            here = (*path, key)
            if key in data:
                raise self._problem(key_node, here, "this key stands here twice; remove one")
            self._source.keys[here] = key_node.start_mark
            data[key] = self.build(value_node, here, depth + 1)
        return data

    def _scalar(self, node: yaml.Node, path: tuple[object, ...]) -> object:
        if not isinstance(node, yaml.ScalarNode) or node.tag not in _SCALARS:
            what = node.tag.removeprefix("tag:yaml.org,2002:")
            raise self._problem(
                node, path, f"{shown(what)} is not allowed here; use plain text, numbers, lists and mappings"
            )
        try:
            value: object = self._loader.construct_object(node)
            str(value).encode()
        except (ValueError, LookupError, ArithmeticError) as error:
            # What PyYAML raises for values such as `!!int ""`, `!!bool x` or a number of 5,000 digits.
            raise self._problem(node, path, f"{shown(node.value)} cannot be read; write it another way") from error
        return value

    def _problem(self, node: yaml.Node, path: tuple[object, ...], message: str) -> PolicyError:
        return PolicyError(str(_at(self._source.path, node.start_mark, path, message)))


def _at(file: str, mark: yaml.Mark | None, where: Sequence[object], message: str) -> Problem:
    line, column = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
    return Problem(line, column, ".".join(map(str, where)), message, file)


def _place(before: str) -> str:
    """`line:column` of what follows `before`."""
    return f"{before.count(chr(10)) + 1}:{len(before) - before.rfind(chr(10))}"


def _printable(text: str) -> str:
    """Without line breaks, control characters and endless words: keys of a file may hold anything."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[:2000])


def _too_many() -> str:
    return f"too many or too deeply nested values; a policy has at most {_MAX_VALUES}, {_MAX_DEPTH} levels deep"


def _too_large(name: str) -> PolicyError:
    return PolicyError(f"{name}:1:1: larger than {MAX_BYTES // 1024} KiB; a policy is a few lines")

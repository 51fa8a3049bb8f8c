"""Reads a YAML file as plain data within bounds, with the line and column of each value."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
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
_MAX_SHOWN = 10
_MAX_ADVICE = 40  # characters of a number of YAML 1.1 that is worked out
_TOO_MANY = f"too many or too deeply nested values; a policy has at most {_MAX_VALUES}, {_MAX_DEPTH} levels deep"

_BOOLEAN, _INTEGER, _FLOAT = (f"tag:yaml.org,2002:{name}" for name in ("bool", "int", "float"))
_SCALARS = {_BOOLEAN, _INTEGER, _FLOAT, "tag:yaml.org,2002:null", "tag:yaml.org,2002:str"}
# What YAML 1.1 reads as a number, and 1.2 as text.
_OLD_NUMBER = "tag:yaml.org,2002:number-1.1"
# The core schema of YAML 1.2 (section 10.3.2).
_INTEGERS = re.compile(r"^(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)$")
_FLOATS = re.compile(
    r"^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
)


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
    more = len(lines) - _MAX_SHOWN
    return PolicyError("\n".join(lines[:_MAX_SHOWN] + ([f"... and {more} more"] if more > 0 else [])))


def shown(value: object) -> str:
    """A value as it may stand in a message."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


@dataclass(frozen=True)
class Source:
    """A parsed file: plain `data`, and the marks of the keys and values at each path."""

    path: str
    data: object
    keys: Mapping[tuple[object, ...], yaml.Mark]
    values: Mapping[tuple[object, ...], yaml.Mark]

    def problem(self, where: Sequence[object], message: str, at_key: bool = False) -> Problem:
        """A problem at `where`; steps of the path that the file does not have are skipped."""
        path: tuple[object, ...] = ()
        for step in where:
            if (*path, step) in self.values:
                path = (*path, step)
        mark = (self.keys.get(path) if at_key else None) or self.values.get(path)
        return _at(self.path, mark, path, message)

    def error(self, where: Sequence[object], message: str, at_key: bool = False) -> PolicyError:
        """One problem as an error."""
        return PolicyError(str(self.problem(where, message, at_key)))


def read_yaml(path: Path) -> Source:
    """Raises PolicyError, which says where, if it is unreadable, too large, not YAML, or not plain data."""
    return parse_yaml(read_text(path), str(path))


def read_text(path: Path) -> str:
    """Raises PolicyError if it is unreadable, too large, or not text."""
    try:
        with open(open_file(path), "rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise PolicyError(f"{path}: cannot be read ({reason}); check the path") from error
    if len(raw) > MAX_BYTES:
        raise _too_large(str(path))
    try:
        return raw.decode("utf-8-sig")  # editors on Windows write a byte order mark
    except UnicodeDecodeError as error:
        position = _line_column(raw[: error.start].decode("latin-1"))
        raise PolicyError(f"{path}:{position}: not UTF-8 text; a policy is a YAML file") from error


def parse_yaml(text: str, name: str) -> Source:
    """`read_yaml` of text already read; `name` stands for the file in errors."""
    if len(text) > MAX_BYTES:
        raise _too_large(name)
    try:
        loader = _Loader(text, name)
    except yaml.reader.ReaderError as error:
        position, code = _line_column(text[: error.position]), f"U+{ord(text[error.position]):04X}"
        raise PolicyError(f"{name}:{position}: not YAML: {code} is not a printable character") from error
    try:
        node = loader.get_single_node()
        if node is None:
            raise PolicyError(f"{name}:1:1: the file is empty; start from one of the shipped policies")
        return Source(name, loader.build(node, (), 0), loader.keys, loader.values)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise _error(name, mark, (), f"not YAML: {error.problem or error.context}") from error
    except (ValueError, OverflowError) as error:
        # The scanner lets this one through for escapes such as "\UFFFFFFFF".
        raise _error(name, loader.get_mark(), (), f"not YAML: no such character ({error})") from error
    finally:
        loader.dispose()


class _Loader(yaml.SafeLoader):
    """Plain data with a mark for each value. Refuses depth and sheer number before memory or recursion run out.

    As in YAML 1.2, which editors follow, only true and false are booleans (on, off, yes and no are words), and numbers
    are those of its core schema: 1e3, 0o17 and 0x1F, and 010 is ten. What only YAML 1.1 reads as a number, such as 1:30
    for 90 or 1_000, is refused.
    """

    def __init__(self, text: str, file: str) -> None:
        super().__init__(text)
        self.keys: dict[tuple[object, ...], yaml.Mark] = {}
        self.values: dict[tuple[object, ...], yaml.Mark] = {}
        self._file = file
        self._depth = 0
        self._nodes = 0  # as they stand in the text
        self._count = 0  # of values, with those that aliases repeat

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self._depth += 1
        self._nodes += 1
        if self._depth > _MAX_DEPTH or self._nodes > 2 * _MAX_VALUES:
            event: Any = self.peek_event()  # type: ignore[no-untyped-call]  # the stubs lack it
            raise yaml.MarkedYAMLError(problem=_TOO_MANY, problem_mark=event.start_mark)
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def build(self, node: yaml.Node, path: tuple[object, ...], depth: int) -> object:
        self._count += 1
        if self._count > _MAX_VALUES or depth > _MAX_DEPTH:
            # Only aliases get here, and their values are elsewhere: the top-level key that holds them is reported.
            mark = self.keys.get(path[:1], node.start_mark)
            raise _error(self._file, mark, path[:1], f"{_TOO_MANY} (aliases count each time they are used)")
        self.values[path] = node.start_mark
        if isinstance(node, yaml.MappingNode) and node.tag == "tag:yaml.org,2002:map":
            return self._mapping(node, path, depth)
        if isinstance(node, yaml.SequenceNode) and node.tag == "tag:yaml.org,2002:seq":
            return [self.build(item, (*path, i), depth + 1) for i, item in enumerate(node.value)]
        return self._scalar(node, path)

    def _mapping(self, node: yaml.MappingNode, path: tuple[object, ...], depth: int) -> dict[object, object]:
        data: dict[object, object] = {}
        for key_node, value_node in node.value:
            key, mark = self._scalar(key_node, path), key_node.start_mark
            if not isinstance(key, (str, int)) or isinstance(key, bool):
                message = f"the key {shown(key)} must be a word or a number; put it in quotes"
                raise _error(self._file, mark, path, message)
            here = (*path, key)
            if key in data:
                raise _error(self._file, mark, here, "this key stands here twice; remove one")
            self.keys[here] = mark
            data[key] = self.build(value_node, here, depth + 1)
        return data

    def _scalar(self, node: yaml.Node, path: tuple[object, ...]) -> object:
        if isinstance(node, yaml.ScalarNode) and node.tag == _OLD_NUMBER:
            message = f"{shown(node.value)} is no number in YAML 1.2; {_advice(node.value)}"
            raise _error(self._file, node.start_mark, path, message)
        if not isinstance(node, yaml.ScalarNode) or node.tag not in _SCALARS:
            what = shown(node.tag.removeprefix("tag:yaml.org,2002:"))
            message = f"{what} is not allowed here; use plain text, numbers, lists and mappings"
            raise _error(self._file, node.start_mark, path, message)
        try:
            value: object = self.construct_object(node)
            str(value).encode()
        except (ValueError, LookupError, ArithmeticError) as error:
            # What PyYAML raises for values such as `!!int ""`, `!!bool x` or a number of 5,000 digits.
            message = f"{shown(node.value)} cannot be read; write it another way"
            raise _error(self._file, node.start_mark, path, message) from error
        return value


def _integer(_: _Loader, node: yaml.ScalarNode) -> int:
    text = node.value
    if _INTEGERS.match(text) is None:
        raise ValueError(text)
    return int(text[2:], 8 if text[1] == "o" else 16) if text[:2] in ("0o", "0x") else int(text)


def _float(_: _Loader, node: yaml.ScalarNode) -> float:
    text = node.value
    if _FLOATS.match(text) is None and _INTEGERS.match(text) is None:
        raise ValueError(text)
    return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))


def _advice(text: str) -> str:
    """What to write in place of a number of YAML 1.1."""
    reader = yaml.SafeLoader("")
    try:
        if len(text) <= _MAX_ADVICE:
            for tag in (_INTEGER, _FLOAT):
                with suppress(ValueError, ArithmeticError):
                    value = yaml.SafeLoader.yaml_constructors[tag](reader, yaml.ScalarNode(tag, text))
                    return f"write it as {value}, or in quotes if it is text"
    finally:
        reader.dispose()
    return "write it another way, or in quotes if it is text"


def _add_resolvers(kind: Any, *, old: bool) -> None:
    """Numbers of the core schema, in place of or next to those of YAML 1.1; booleans likewise."""
    digits = list("-+.0123456789")
    kind.add_implicit_resolver(_BOOLEAN, re.compile("^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
    kind.add_implicit_resolver(_INTEGER, _INTEGERS, digits)
    kind.add_implicit_resolver(_FLOAT, _FLOATS, digits)
    if old:
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items():
            for tag, pattern in resolvers:
                if tag in (_INTEGER, _FLOAT):
                    kind.add_implicit_resolver(_OLD_NUMBER, pattern, [first])


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in (_BOOLEAN, _INTEGER, _FLOAT)]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_add_resolvers(_Loader, old=True)
_Loader.add_constructor(_INTEGER, _integer)
_Loader.add_constructor(_FLOAT, _float)


class _Dumper(yaml.SafeDumper):
    """Puts text in quotes that either version of YAML would read as something else."""


_add_resolvers(_Dumper, old=False)


def dump_yaml(value: object, **options: Any) -> str:
    """Plain data as YAML that `parse_yaml` reads back as it was; `options` are those of `yaml.dump`."""
    text: str = yaml.dump(value, Dumper=_Dumper, **options)
    return text


def _error(file: str, mark: yaml.Mark | None, where: Sequence[object], message: str) -> PolicyError:
    return PolicyError(str(_at(file, mark, where, message)))


def _at(file: str, mark: yaml.Mark | None, where: Sequence[object], message: str) -> Problem:
    line, column = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
    return Problem(line, column, ".".join(map(str, where)), message, file)


def _line_column(before: str) -> str:
    """`line:column` of what follows `before`."""
    return f"{before.count(chr(10)) + 1}:{len(before) - before.rfind(chr(10))}"


def _printable(text: str) -> str:
    """Without line breaks, control characters and endless words: keys of a file may hold anything."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[:2000])


def _too_large(name: str) -> PolicyError:
    return PolicyError(f"{name}:1:1: larger than {MAX_BYTES // 1024} KiB; a policy is a few lines")

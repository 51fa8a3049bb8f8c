"""Reading one YAML file so that every value still knows its line and column.

Safe only: plain scalars, lists and mappings; bounded in size, depth and aliases. Knows nothing of policies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from adaptspec.errors import PolicyError

MAX_BYTES = 256 * 1024
_MAX_VALUES = 20_000
_MAX_DEPTH = 24

_SCALARS = {f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float", "str")}


@dataclass(frozen=True)
class Source:
    """A parsed file: plain `data`, and where each path of it stands."""

    path: str
    data: object
    keys: dict[tuple[object, ...], yaml.Mark] = field(default_factory=dict)
    values: dict[tuple[object, ...], yaml.Mark] = field(default_factory=dict)

    def error(self, where: Sequence[object], message: str, at_key: bool = False) -> PolicyError:
        """An error at `where`: the nearest place that exists in the file, steps that do not are skipped."""
        here: tuple[object, ...] = ()
        for step in where:
            if (*here, step) in self.values:
                here = (*here, step)
        mark = (self.keys.get(here) if at_key else None) or self.values.get(here)
        return _error(self.path, mark, ".".join(str(step) for step in here), message)


def read_yaml(path: Path) -> Source:
    """
    Raises:
        PolicyError: unreadable, too large, not YAML, or not plain data; says where.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise PolicyError(f"{path}: cannot be read ({error.strerror}); check the path") from error
    if len(raw) > MAX_BYTES:
        raise PolicyError(f"{path}:1:1: larger than {MAX_BYTES // 1024} KiB; a policy is a few lines")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise PolicyError(f"{path}:1:1: not UTF-8 text (byte {error.start}); a policy is a YAML file") from error
    return parse_yaml(text, str(path))


def parse_yaml(text: str, name: str) -> Source:
    """The same for text already read; `name` stands for the file in errors.

    Raises:
        PolicyError: not YAML, or not plain data; says where.
    """
    try:
        loader = yaml.SafeLoader(text)
    except yaml.YAMLError as error:
        raise PolicyError(f"{name}:1:1: not YAML: {str(error).splitlines()[0]}") from error
    try:
        node = loader.get_single_node()
        if node is None:
            raise PolicyError(f"{name}:1:1: the file is empty; start from one of the shipped policies")
        source = Source(name, None)
        data = _Builder(loader, source).build(node, (), 0)
        return Source(name, data, source.keys, source.values)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise _error(name, mark, "", f"not YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise PolicyError(f"{name}:1:1: not YAML: {error}") from error
    except RecursionError as error:
        raise PolicyError(f"{name}:1:1: nested too deeply; a policy is at most {_MAX_DEPTH} levels deep") from error
    finally:
        loader.dispose()


class _Builder:
    """Turns a node tree into plain data, counting every value an alias repeats."""

    def __init__(self, loader: yaml.SafeLoader, source: Source) -> None:
        self._loader = loader
        self._source = source
        self._count = 0

    def build(self, node: yaml.Node, path: tuple[object, ...], depth: int) -> object:
        self._count += 1
        if self._count > _MAX_VALUES or depth > _MAX_DEPTH:
            raise self._problem(
                node, path, "too many or too deeply nested values (aliases count each time they are used)"
            )
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
                node, path, f"{what!r} is not allowed here; use plain text, numbers, lists and mappings"
            )
        try:
            value: object = self._loader.construct_object(node)
        except ValueError as error:
            raise self._problem(node, path, f"{node.value!r} cannot be read ({error})") from error
        return value

    def _problem(self, node: yaml.Node, path: tuple[object, ...], message: str) -> PolicyError:
        return _error(self._source.path, node.start_mark, ".".join(str(step) for step in path), message)


def _error(path: str, mark: yaml.Mark | None, where: str, message: str) -> PolicyError:
    line, column = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
    return PolicyError(f"{path}:{line}:{column}: {where + ': ' if where else ''}{message}")

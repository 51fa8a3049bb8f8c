"""Changing single values of a policy's YAML text while comments, order and layout stay.

Knows YAML text and paths, nothing of what the values mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import yaml

from adaptspec.control.language.yaml_source import parse_yaml
from adaptspec.errors import PolicyError

Value = int | float | str | bool
Path = tuple[str, ...]


def with_values(text: str, values: Mapping[Path, Value], name: str = "<policy>") -> str:
    """The text with these values in place, by path. A key that is not there yet is put first in its mapping.

    Raises:
        PolicyError: the text cannot be read, or a path leads through something that is no mapping, or that an alias
            repeats elsewhere.
    """
    for path, value in values.items():
        before = parse_yaml(text, name).data
        text = _with_value(text, path, value, name)
        if parse_yaml(text, name).data != _changed(before, path, value):
            raise PolicyError(f"{name}:1:1: {'.'.join(path)}: cannot be changed alone; write out what aliases repeat")
    return text


def _with_value(text: str, path: Path, value: Value, name: str) -> str:
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    for depth, key in enumerate(path):
        if not isinstance(node, yaml.MappingNode):
            raise PolicyError(f"{name}:1:1: {'.'.join(path[:depth])}: is no mapping, so {key!r} cannot be set in it")
        found = next((below for own, below in node.value if own.value == key), None)
        if found is None:
            return _inserted(text, node, path[depth:], value)
        node = found
    if not isinstance(node, yaml.ScalarNode):
        raise PolicyError(f"{name}:1:1: {'.'.join(path)}: is no single value")
    return text[: node.start_mark.index] + _scalar(value) + text[node.end_mark.index :]


def _inserted(text: str, node: yaml.MappingNode, rest: Sequence[str], value: Value) -> str:
    """The value, in as many new mappings as it takes, before the first key of a mapping."""
    entry = _scalar(value)
    for key in reversed(rest[1:]):
        entry = f"{{{key}: {entry}}}"
    entry = f"{rest[0]}: {entry}"
    if node.flow_style:
        at = node.start_mark.index + 1
        return f"{text[:at]}{entry}{', ' if node.value else ''}{text[at:]}"
    mark = node.value[0][0].start_mark
    return f"{text[: mark.index]}{entry}\n{' ' * mark.column}{text[mark.index :]}"


def _scalar(value: Value) -> str:
    if isinstance(value, float):
        # YAML 1.1 takes 1e-05 for a word, and 3 for an integer.
        return np.format_float_positional(value, trim="0")
    return yaml.safe_dump(value, default_flow_style=True).removesuffix("\n...\n").strip()


def _changed(data: object, path: Path, value: Value) -> object:
    """The data with one value changed."""
    if not path:
        return value
    below: dict[Any, object] = dict(data) if isinstance(data, dict) else {}
    below[path[0]] = _changed(below.get(path[0], {}), path[1:], value)
    return below

"""What a search may change of a policy: numbers with bounds in its schema, or what a user says."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import yaml
from pydantic.fields import FieldInfo

from adaptspec.control.language.schema import Part, kebab
from adaptspec.control.language.spec import PolicySpec
from adaptspec.control.language.yaml_source import dump_yaml, parse_yaml
from adaptspec.errors import ConfigError, PolicyError

Value = int | float | str | bool
Path = tuple[str, ...]

# A parameter is tried within this factor of its value, unless the user gives a range.
_FACTOR = 4.0
# What is no setting to be tuned: who is served, luck, ceilings, and guards, which are there for days unlike the tape's.
_LEFT_ALONE = ("metadata", "rollout", "seed", "verification", "guard", "max_width", "max_nodes")
_DIGITS = 4


@dataclass(frozen=True)
class Range:
    """A number between `low` and `high`, both included. Searched on a log scale where that makes sense: of its distance
    from `anchor` (0, or 1 for shares near 1 such as discounts), evenly where there is no anchor.
    """

    path: Path
    low: float
    high: float
    integer: bool
    anchor: float | None = None

    def draw(self, rng: np.random.Generator) -> Value:
        if self.anchor is None:
            value = rng.uniform(self.low, self.high)
        else:
            ends = sorted((abs(self.low - self.anchor), abs(self.high - self.anchor)))
            away = math.exp(rng.uniform(math.log(ends[0]), math.log(ends[1])))
            value = self.anchor + math.copysign(away, self.high + self.low - 2.0 * self.anchor)
        value = min(max(value, self.low), self.high)
        return round(value) if self.integer else _rounded(value, self.anchor or 0.0, self.low, self.high)

    def __str__(self) -> str:
        return f"{'.'.join(self.path)}={self.low:g}..{self.high:g}"


@dataclass(frozen=True)
class OneOf:
    """One of several values."""

    path: Path
    values: tuple[Value, ...]

    def draw(self, rng: np.random.Generator) -> Value:
        return self.values[int(rng.integers(len(self.values)))]

    def __str__(self) -> str:
        return f"{'.'.join(self.path)}={'|'.join(map(str, self.values))}"


Parameter = Range | OneOf


def draw(space: Sequence[Parameter], rng: np.random.Generator) -> Mapping[Path, Value]:
    """One candidate: half of the parameters get a new value (at least one), so that good old ones stay together."""
    chosen = rng.random(len(space)) < 0.5
    chosen[int(rng.integers(len(space)))] = True
    return {one.path: one.draw(rng) for one, use in zip(space, chosen.tolist(), strict=True) if use}


def parameters_of(spec: PolicySpec) -> list[Parameter]:
    """Every number of a policy but its guards', defaults included, within its bounds and a factor of four of itself."""
    return list(_numbers(spec, ()))


def parse_parameter(text: str) -> Parameter:
    """What a user says: `spec.choose.optimism=0..1`, or `spec.choose.scope=request|task`. Raises ConfigError: it is
    neither.
    """
    name, found, values = text.partition("=")
    path = tuple(name.strip().split("."))
    low, several, high = values.partition("..")
    if found and several and all(path):
        try:
            ends = float(low), float(high)
        except ValueError:
            ends = math.nan, math.nan
        if math.isfinite(ends[0]) and math.isfinite(ends[1]) and ends[0] < ends[1]:
            whole = not any(sign in low + high for sign in ".eE")
            return Range(path, *ends, integer=whole, anchor=0.0 if ends[0] > 0.0 and ends[1] / ends[0] > 4.0 else None)
    if found and "|" in values and all(path):
        return OneOf(path, tuple(value.strip() for value in values.split("|")))
    raise ConfigError(f"--set {text}: give path=low..high, such as spec.choose.optimism=0..1, or path=one|other")


def _numbers(model: Part, path: Path) -> Iterator[Range]:
    for name, field in type(model).model_fields.items():
        value, here = getattr(model, name), (*path, field.alias or kebab(name))
        if name in _LEFT_ALONE:
            continue
        if isinstance(value, Part):
            yield from _numbers(value, here)
        elif isinstance(value, dict):
            for key, below in value.items():
                if isinstance(below, Part):
                    yield from _numbers(below, (*here, str(key)))
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            found = _near(here, value, field)
            if found is not None:
                yield found


def _near(path: Path, value: float, field: FieldInfo) -> Range | None:
    """The range of a number around its value; None where it has no bounds, or nothing is left between them."""
    whole = isinstance(value, int)
    lowest, highest = _bounds(field, 1.0 if whole else 1e-4)
    if lowest is None:
        return None
    if highest == 1.0 and 0.9 <= value < 1.0:  # a discount or its like: what counts is how far from 1 it is
        away = 1.0 - value
        return Range(path, max(lowest, 1.0 - _FACTOR * away), 1.0 - away / _FACTOR, integer=False, anchor=1.0)
    top = math.inf if highest is None else highest
    if value > 0.0:
        low, high = max(lowest, value / _FACTOR), min(top, value * _FACTOR)
        low, high = (math.ceil(low), math.floor(high)) if whole else (low, high)
        return Range(path, low, high, whole, anchor=0.0) if 0.0 < low < high else None
    return Range(path, lowest, min(top, 1.0), whole) if lowest < min(top, 1.0) else None


def _bounds(field: FieldInfo, step: float) -> tuple[float | None, float | None]:
    """The least and the greatest value that the schema allows; a strict bound is moved by `step`."""
    least, above, most, below = (
        next((float(getattr(rule, name)) for rule in field.metadata if getattr(rule, name, None) is not None), None)
        for name in ("ge", "gt", "le", "lt")
    )
    return least if above is None else above + step, most if below is None else below - step


def _rounded(value: float, anchor: float, low: float, high: float) -> float:
    """To a few digits of what is varied, within the range."""
    away = value - anchor
    if not away:
        return float(value)
    digits = _DIGITS - 1 - math.floor(math.log10(abs(away)))
    return float(min(max(round(anchor + round(away, digits), 12), low), high))


def with_values(text: str, values: Mapping[Path, Value], name: str = "<policy>") -> str:
    """The text with these values in place, by path. A key that is not there yet is put first in its mapping. Raises
    PolicyError: the text cannot be read, or a path leads through something that is no mapping, or that an alias repeats
    elsewhere.
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
    return dump_yaml(value, default_flow_style=True).removesuffix("\n...\n").strip()


def _changed(data: object, path: Path, value: Value) -> object:
    if not path:
        return value
    below: dict[Any, object] = dict(data) if isinstance(data, dict) else {}
    below[path[0]] = _changed(below.get(path[0], {}), path[1:], value)
    return below

"""Typed fields of a config.json: numbers that are missing or of the wrong kind end in a ModelError that names them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adaptspec.errors import ModelError


def count(config: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """A positive integer; `default` if the field is missing or null."""
    value = default if config.get(name) is None else config[name]
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ModelError(f"config.json: {name} is {value!r}; it must be a positive integer")
    return value


def number(config: Mapping[str, Any], name: str, default: float | None = None) -> float:
    """A positive number; `default` if the field is missing or null."""
    value = default if config.get(name) is None else config[name]
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not value > 0:
        raise ModelError(f"config.json: {name} is {value!r}; it must be a positive number")
    return float(value)

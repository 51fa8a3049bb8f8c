"""What a request asks for in `vllm_xargs`: `adaptspec_policy`, `adaptspec_task` and `adaptspec_max_depth`.

It is read where an exception would end the server for everybody, so nothing here raises: what cannot be used is left
out and named, and the rest holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from adaptspec.errors import RequestError
from adaptspec.request import SpeculationParams

_PREFIX = "adaptspec_"
_DEEPEST = 2**31 - 1  # of a wish: deeper is as deep as there is, and fits into an array


def read_wishes(extra: object) -> tuple[SpeculationParams, tuple[str, ...]]:
    """The wishes among the extra arguments of a request, and the names of those that cannot be used."""
    wishes, ignored = SpeculationParams(), []
    told = {} if not isinstance(extra, Mapping) else extra
    for name in told:
        if not (isinstance(name, str) and name.startswith(_PREFIX)):
            continue
        field = name.removeprefix(_PREFIX)
        try:
            wishes = replace(wishes, **{field: _READERS[field](told[name])})
        except (KeyError, ValueError, RequestError):
            ignored.append(name)
    return wishes, tuple(ignored)


def _name(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("not a name")
    return value


def _depth(value: Any) -> int:
    """A whole number, also as text, since not every client can send numbers."""
    if isinstance(value, bool) or not isinstance(value, int | float | str) or value != value:  # noqa: PLR0124
        raise ValueError("not a number of tokens")
    if isinstance(value, str):
        return min(int(value), _DEEPEST)
    if value > _DEEPEST:
        return _DEEPEST
    if isinstance(value, float) and not value.is_integer():
        raise ValueError("not a whole number")
    return int(value)


_READERS: Mapping[str, Callable[[Any], Any]] = {"policy": _name, "task": _name, "max_depth": _depth}

"""What differs between two policies once all defaults are filled in. Knows specs, not files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from adaptspec.control.spec import PolicySpec


@dataclass(frozen=True)
class Difference:
    """One path at which two policies differ; None where one of them has nothing there."""

    path: str
    left: object | None
    right: object | None

    def __str__(self) -> str:
        """`path: left -> right`, `path: + right`, or `path: - left`."""
        if self.left is None:
            return f"{self.path}: + {self.right}"
        if self.right is None:
            return f"{self.path}: - {self.left}"
        return f"{self.path}: {self.left} -> {self.right}"


def differences(left: PolicySpec, right: PolicySpec) -> list[Difference]:
    """Every difference of meaning, by path: names and descriptions included, layout and comments not."""
    one, other = _flat(left), _flat(right)
    paths = list(one) + [path for path in other if path not in one]
    return [Difference(p, one.get(p), other.get(p)) for p in paths if one.get(p) != other.get(p)]


def _flat(spec: PolicySpec) -> dict[str, object]:
    return dict(_leaves(spec.model_dump(by_alias=True), ""))


def _leaves(value: Mapping[Any, object], path: str) -> Iterator[tuple[str, object]]:
    for key, below in value.items():
        here = f"{path}.{key}" if path else str(key)
        if isinstance(below, dict):
            yield from _leaves(below, here)
        else:
            yield here, below

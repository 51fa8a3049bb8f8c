"""Algorithms of installed packages, by name: entry points of the group `adaptspec.policies`.

All are imported when a program starts that reads policies; no policy, whoever sends it, makes anything import.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, get_args

from adaptspec.control.language.schema import Part

GROUP = "adaptspec.policies"
# What ships goes by these names (a test holds the registry to it).
OURS = {"static", "batch-table", "ema-tiers", "goodput", "slo", "ucb", "thompson", "exp3", "linucb", "nightjar"}
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Algorithms:
    """Specs of algorithms by name, and why others cannot be used."""

    specs: dict[str, type[Part]]
    failed: dict[str, str]


def load(points: Iterable[EntryPoint]) -> Algorithms:
    """The specs that entry points name: each a `Part` whose `algorithm` is a Literal of the entry point's name, and

    whose `build(parts)` makes a `Chooser`. What fails is a line in the log, and is told where a policy names it.
    """
    found = Algorithms({}, {})
    for point in points:
        try:
            found.specs[point.name] = _checked(point.name, point.load())
        except Exception as error:  # noqa: BLE001 - whatever a package of others raises, ours must serve
            package = "a package" if point.dist is None else point.dist.name
            reason = f"{package} brings it, and it cannot be used ({type(error).__name__}: {error})"
            found.failed[point.name] = reason
            _log.warning("algorithm %s: %s", point.name, reason)
    return found


def _checked(name: str, spec: Any) -> type[Part]:
    if name in OURS:
        raise TypeError("an algorithm that ships is called so; give yours another name")
    if not isinstance(spec, type) or not issubclass(spec, Part) or not callable(getattr(spec, "build", None)):
        raise TypeError(f"{spec!r} is no subclass of adaptspec.control.language.schema.Part with a method build(parts)")
    field = spec.model_fields.get("algorithm")
    if field is None or get_args(field.annotation) != (name,):
        raise TypeError(f"its field `algorithm` must be Literal[{name!r}], as the entry point is called")
    return spec


INSTALLED = load(entry_points(group=GROUP))

"""Which algorithm the `algorithm` of a policy file means. To add one: its spec class, in the union below.

Algorithms of installed packages follow (entry points of the group `adaptspec.policies`), with the same errors and the
same place in the schema. They are imported when a program starts that reads policies; no policy, whoever sends it,
makes anything import.
"""

from __future__ import annotations

import functools
import logging
import operator
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Annotated, Any, get_args

from pydantic import Field

from adaptspec.control.algorithms.algorithm import AlgorithmSpec
from adaptspec.control.algorithms.bandit import Exp3Spec, LinUcbSpec, ThompsonSpec, UcbSpec
from adaptspec.control.algorithms.fixed_depths import BatchTableSpec, EmaTiersSpec, StaticSpec
from adaptspec.control.algorithms.goodput import GoodputSpec
from adaptspec.control.algorithms.slo import SloSpec
from adaptspec.control.language.schema import Short

Shipped = (
    StaticSpec | BatchTableSpec | EmaTiersSpec | GoodputSpec | UcbSpec | ThompsonSpec | Exp3Spec | LinUcbSpec | SloSpec
)
GROUP = "adaptspec.policies"
_log = logging.getLogger(__name__)


def _name_of(spec: type[AlgorithmSpec]) -> str | None:
    """The algorithm that a spec is chosen by, if it is one name."""
    field = spec.model_fields.get("algorithm")
    names = () if field is None else get_args(field.annotation)
    return names[0] if len(names) == 1 else None


@dataclass(frozen=True)
class Algorithms:
    """Specs of algorithms by name, and why others cannot be used."""

    specs: dict[str, type[AlgorithmSpec]]
    failed: dict[str, str]


def load(points: Iterable[EntryPoint]) -> Algorithms:
    """The specs that entry points name: each an `AlgorithmSpec` whose `algorithm` is a Literal of the entry point's
    name. A failure is logged, and is the error of each policy that names the algorithm.
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


def _checked(name: str, spec: Any) -> type[AlgorithmSpec]:
    if name in map(_name_of, get_args(Shipped)):
        raise TypeError("an algorithm that ships is called so; give yours another name")
    if not isinstance(spec, type) or not issubclass(spec, AlgorithmSpec):
        raise TypeError(f"{spec!r} is no subclass of adaptspec.control.algorithms.algorithm.AlgorithmSpec")
    if _name_of(spec) != name:
        raise TypeError(f"its field `algorithm` must be Literal[{name!r}], as the entry point is called")
    return spec


INSTALLED = load(entry_points(group=GROUP))
if TYPE_CHECKING:
    _Every = Shipped
else:
    _Every = functools.reduce(operator.or_, INSTALLED.specs.values(), Shipped)

ChooseSpec = Annotated[_Every, Field(discriminator="algorithm"), Short("algorithm")]

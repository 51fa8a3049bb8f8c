"""What is taken for granted of another engine, whose inside is no public interface: looked up by name when it starts.

An engine that is driven wrongly verifies drafts that were never drawn, and says nothing. So what is not known here is
refused before the first request, by its name.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from importlib import import_module
from typing import Any

ANY_VERSION = "ADAPTSPEC_ANY_VERSION"  # an environment variable: try another version, if its names are as expected

# By `module:path`. Of a function: its parameters, which may be followed by others where they end in an ellipsis, and
# names that it goes by: attributes that it sets or reads, and what it calls. Of a class: nothing, and its fields.
Contract = Mapping[str, tuple[str, str]]


def strange_version(engine: str, here: str, known: Sequence[str]) -> str:
    """What to do about a version that nobody has tried with this one; nothing if it is known, or may be any."""
    if os.environ.get(ANY_VERSION) or any(f"{here}.".startswith(f"{one}.") for one in known):
        return ""
    tried = " and ".join(known)
    return f"this is {engine} {here}, and {tried} was tried: install that, or set {ANY_VERSION}=1 to go by names alone"


def broken(contract: Contract) -> Iterator[str]:
    """All that is otherwise than a contract has it, by name."""
    for place, (parameters, names) in contract.items():
        said = place.partition(":")[2]
        try:
            found = _find(place)
        except Exception as error:  # noqa: BLE001 - whatever keeps it from being looked at
            yield f"{place} cannot be used ({type(error).__name__}: {error})"
            continue
        if isinstance(found, type):
            known = {name for one in found.__mro__ for name in inspect.get_annotations(one)}
            yield from (f"{said}.{name} is missing" for name in names.split() if name not in known)
            continue
        wanted, taken = parameters.split(), list(inspect.signature(found).parameters)
        if wanted[-1:] == ["..."]:
            wanted = [*wanted[:-1], *taken[len(wanted) - 1 :]]
        if taken != wanted:
            yield f"{said} takes ({', '.join(taken)}), not ({', '.join(wanted)})"
        yield from (f"{said} does not use {name}" for name in names.split() if name not in found.__code__.co_names)


def _find(place: str) -> Any:
    """A class, or a function of a class's own, since what it inherits is another's. Decorators are looked through."""
    module, _, path = place.partition(":")
    *owners, name = path.split(".")
    found: Any = vars(reduce(getattr, owners, import_module(module)))[name]
    plain: Any = found.fget if isinstance(found, property) else found
    return inspect.unwrap(plain)

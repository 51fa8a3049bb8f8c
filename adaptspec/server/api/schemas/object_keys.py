"""What a schema says of the keys of an object, with all parts of the schema that describe the same object."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from adaptspec.server.api.schemas.schema_words import APPLICATORS, OF_OBJECTS

# What parts may contest besides keys, in the form of keys.
ITEMS, PATTERNS = "\0items", "\0patterns"


@dataclass
class ObjectKeys:
    """What a schema says of the keys of an object, with all parts that hold together.

    `shared` counts the parts that hold in any case by the keys they describe, `ITEMS` and `PATTERNS` included;
    `alternative` are keys that alternatives describe; `all` are those and the ones that are only named, in order.
    """

    shared: Counter[str] = field(default_factory=Counter)
    alternative: set[str] = field(default_factory=set)
    all: dict[str, None] = field(default_factory=dict)
    has_properties: bool = False
    says_others: bool = False  # additionalProperties, in some part
    at_least: int = 0

    def add_own(self, name: str, value: object) -> None:
        """What one keyword says; applicators and conditions are read elsewhere."""
        if name == "properties" and isinstance(value, dict):
            self.has_properties = True
            self.shared.update(value.keys())
            self.all |= dict.fromkeys(value)
        elif name == "required" and isinstance(value, list):
            self.all |= dict.fromkeys(one for one in value if isinstance(one, str))
        elif name in ("additionalProperties", "unevaluatedProperties") and value is not None:
            closes = name == "unevaluatedProperties" and value is False
            self.has_properties |= closes
            self.says_others |= not closes
            self.shared.update([PATTERNS] if isinstance(value, dict) else ())
        elif name == "patternProperties" and isinstance(value, dict):
            self.shared.update([PATTERNS])
        elif name in ("items", "prefixItems") and value is not None:
            self.shared.update([ITEMS])
        elif name == "minProperties" and isinstance(value, int):
            self.at_least = value

    def add_part(self, other: ObjectKeys) -> None:
        """A part that holds, too."""
        self.shared.update(other.shared.keys())
        self.alternative |= other.alternative
        self.at_least = max(self.at_least, other.at_least)
        self._add(other)

    def add_alternative(self, other: ObjectKeys) -> None:
        self.alternative |= other.alternative | other.shared.keys()
        self._add(other)

    def _add(self, other: ObjectKeys) -> None:
        self.all |= other.all
        self.has_properties |= other.has_properties
        self.says_others |= other.says_others

    @property
    def contested(self) -> frozenset[str]:
        """Keys that more than one part of an `allOf` describes."""
        several = {name for name, count in self.shared.items() if count > 1}
        patterns = {PATTERNS} if PATTERNS in self.shared or PATTERNS in self.alternative else set[str]()
        return frozenset(several | (self.shared.keys() & self.alternative) | patterns)


def is_composed(words: Mapping[str, Any]) -> bool:
    """Whether several parts describe the same object."""
    applied = [name for name in APPLICATORS if name in words]
    every = words.get("allOf")
    several = isinstance(every, list) and len(every) > 1
    return bool(applied) and (several or len(applied) > 1 or any(name in words for name in OF_OBJECTS))

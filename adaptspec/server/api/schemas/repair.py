"""Finds what of a rewritten schema does not compile, by compiling parts of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from adaptspec.errors import RequestError
from adaptspec.models.grammars import schema_fault
from adaptspec.server.api.schemas.schema_words import KEYWORDS, SCHEMAS, Origin, not_kept, shortened

# Of all compilations that look for parts at fault. A schema that is so large, or has so many of them, is given up.
_MAX_CHARACTERS = 10**6


class Repairer:
    """Finds and leaves out what of a rewritten schema still does not compile."""

    def __init__(self, schema: dict[str, Any], origin: Origin, paths: Mapping[int, str]) -> None:
        self.schema = schema
        self.dropped: dict[str, str] = {}
        self._origin = origin
        self._paths = paths
        self._compiled = 0  # characters

    def repair(self) -> None:
        """Raises RequestError for a strict schema."""
        while (fault := self._fault(self.schema)) is not None:
            if self._compiled > _MAX_CHARACTERS:
                self._give_up(fault)
                return
            part, fault = self._smallest(fault)
            word = next((name for name in reversed(part) if self._is_at_fault(part, name)), None)
            path = self._paths.get(id(part), self._origin.path)
            if word is not None and word in KEYWORDS:
                path = f"{path}.{word}"
            if self._origin.strict:
                raise RequestError(not_kept(path, shortened(fault)), path)
            self.dropped.setdefault(path, shortened(fault))
            if word is not None:
                del part[word]
                if word in ("properties", "patternProperties"):  # their keys may still be written
                    part.pop("additionalProperties", None)
            elif part is self.schema:
                self._give_up(fault)
                return
            else:
                part.clear()

    def _give_up(self, fault: str) -> None:
        """Leave out all of it: any object, or any value where it need not be one."""
        if self._origin.strict:
            raise RequestError(not_kept(self._origin.path, shortened(fault)), self._origin.path)
        self.schema = {"type": "object"} if self.schema.get("type") == "object" else {}
        self.dropped.setdefault(self._origin.path, shortened(fault))

    def _smallest(self, fault: str) -> tuple[dict[str, Any], str]:
        """The smallest part that does not compile, and why."""
        part, waiting, seen = self.schema, _inner_parts(self.schema), {id(self.schema)}
        while self._compiled <= _MAX_CHARACTERS and (inner := next(waiting, None)) is not None:
            if id(inner) in seen:
                continue
            seen.add(id(inner))
            found = self._fault(inner)
            if found is not None:
                part, waiting, fault = inner, _inner_parts(inner), found
        return part, fault

    def _is_at_fault(self, part: dict[str, Any], word: str) -> bool:
        """Whether a part compiles without one of its words."""
        if word in ("type", "$defs"):
            return False
        return self._fault({name: value for name, value in part.items() if name != word}) is None

    def _fault(self, part: Mapping[str, Any]) -> str | None:
        whole = json.dumps({**part, "$defs": self.schema["$defs"]} if "$defs" in self.schema else part)
        self._compiled += len(whole)
        return schema_fault(whole, self._origin.path)


def _inner_parts(part: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The schemas that a rewritten part holds."""
    for name, value in part.items():
        if name in ("properties", "patternProperties", "$defs"):
            found = list(value.values())
        elif name in (*SCHEMAS, "allOf", "anyOf", "oneOf"):
            found = value if isinstance(value, list) else [value]
        else:
            continue
        yield from (one for one in found if isinstance(one, dict))

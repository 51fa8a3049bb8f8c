"""`response_format` on the wire, the grammar that it asks for, and bounds on the JSON schemas of clients.

The compiler of grammars follows references as deep as they go, and a stack has an end: the process would go down with
it. What has to match several patterns takes twice as long, and twice the memory, for each of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, NoReturn

from pydantic import Field

from adaptspec.errors import RequestError
from adaptspec.request import Grammar
from adaptspec.server.api.wire import WireModel, shown

DEEPEST = 128  # parts within each other, with references followed; about 1,500 were too many
MOST_PATTERNS = 8  # and formats, that one text has to match
_REGULAR = ("pattern", "format")
_NOT_CHOSEN = ("allOf", "enum", "const", "default", "examples")  # lists that hold together, or hold no schemas


class TextFormat(WireModel):
    """Any text."""

    type: Literal["text"]


class JsonObjectFormat(WireModel):
    """Any JSON object."""

    type: Literal["json_object"]


class NamedSchema(WireModel):
    """A JSON schema with a name. It is always kept to, whatever `strict` says."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: str | None = None
    definition: Annotated[dict[str, Any], Field(alias="schema")]
    strict: bool | None = None


class JsonSchemaFormat(WireModel):
    """JSON that fits a schema."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


ResponseFormat = Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")]


def grammar_of(wanted: TextFormat | JsonObjectFormat | JsonSchemaFormat | None) -> Grammar | None:
    """The grammar a format asks for; None where any text will do. Raises RequestError for too much of a schema."""
    if isinstance(wanted, JsonObjectFormat):
        return Grammar('{"type": "object"}')
    if isinstance(wanted, JsonSchemaFormat):
        check_schema(wanted.json_schema.definition, "response_format")
        return Grammar(json.dumps(wanted.json_schema.definition))
    return None


def check_schema(schema: Mapping[str, Any], param: str) -> None:
    """Raise RequestError, with the field that the schema came in, for one that would take too much to compile."""
    _Measure(schema, param).of(schema, 0)


class _Measure:
    """How many patterns meet in one text, and how deep parts lie, at most: parts that may be merged are added up."""

    def __init__(self, schema: Mapping[str, Any], param: str) -> None:
        self._schema = schema
        self._param = param
        self._known: dict[int, tuple[int, int]] = {}

    def of(self, part: object, level: int) -> tuple[int, int]:
        """Patterns and levels of a part that lies `level` deep."""
        if not isinstance(part, (dict, list)):
            return 0, 0
        if id(part) not in self._known:
            self._known[id(part)] = 0, 0  # what comes back to itself adds nothing more
            self._known[id(part)] = self._measured(part, level)
        patterns, levels = self._known[id(part)]
        if level + levels > DEEPEST:
            self._refuse(f"lies deeper than {DEEPEST} parts within each other, references followed", "make it flatter")
        return patterns, levels

    def _measured(self, part: dict[str, Any] | list[Any], level: int) -> tuple[int, int]:
        if level > DEEPEST:
            return 0, 1  # refused by `of`, before anything goes deeper
        inner = [self.of(one, level + 1) for one in _alternatives(part)]
        merged = [self.of(one, level + 1) for one in self._together(part)]
        own = sum(isinstance(part.get(name), str) for name in _REGULAR) if isinstance(part, dict) else 0
        patterns = own + sum(count for count, _ in merged) + max((count for count, _ in inner), default=0)
        if patterns > MOST_PATTERNS and merged:
            self._refuse(f"has a text match more than {MOST_PATTERNS} patterns and formats", "join them into fewer")
        return patterns, 1 + max((levels for _, levels in (*inner, *merged)), default=0)

    def _together(self, part: object) -> Iterator[object]:
        """What holds beside all that a part says itself."""
        if isinstance(part, dict):
            every, target = part.get("allOf"), part.get("$ref")
            yield from every if isinstance(every, list) else ()
            if isinstance(target, str):
                yield self._referred(target)

    def _referred(self, reference: str) -> object:
        at: Any = self._schema
        for step in reference.removeprefix("#").split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(at, list):
                at = at[int(name)] if name.isdecimal() and len(name) < 6 and int(name) < len(at) else None
            else:
                at = at.get(name) if isinstance(at, dict) else None
        if at is None or not reference.startswith("#") or reference[1:2] not in ("", "/"):
            self._refuse(f"refers to {shown(reference)}, which is not in it", "refer to its parts as in #/$defs/NAME")
        return at

    def _refuse(self, what: str, remedy: str) -> NoReturn:
        raise RequestError(f"{self._param} has a schema that {what}; {remedy}", self._param)


def _alternatives(part: dict[str, Any] | list[Any]) -> Iterator[object]:
    """Schemas of other texts, or of which one is chosen. Fields may have any name, so what is an object may be one."""
    if isinstance(part, list):
        yield from part
        return
    for name, value in part.items():
        if isinstance(value, dict) or name not in _NOT_CHOSEN:
            yield value

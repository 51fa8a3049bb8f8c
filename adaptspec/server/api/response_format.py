"""`response_format` on the wire, and the grammar that it asks for."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from adaptspec.request import Grammar
from adaptspec.server.api.format_spellings import one_spelling
from adaptspec.server.api.json_schema import check_schema
from adaptspec.server.api.wire import WireModel
from adaptspec.server.limits import ServerLimits


class TextFormat(WireModel):
    """Any text."""

    type: Literal["text"]


class JsonObjectFormat(WireModel):
    """Any JSON object."""

    type: Literal["json_object"]


class NamedSchema(WireModel):
    """A JSON schema with a name. It is always kept to, whatever `strict` says."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")] | None = None
    description: str | None = None
    definition: Annotated[dict[str, Any], Field(alias="schema")]
    strict: bool | None = None


class JsonSchemaFormat(WireModel):
    """JSON that fits a schema."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


class RegexFormat(WireModel):
    """Text that a regular expression matches as a whole; TGI calls the pattern `value`."""

    type: Literal["regex"]
    pattern: str


class GrammarFormat(WireModel):
    """Text that a grammar in Lark or GBNF describes."""

    type: Literal["grammar"]
    grammar: str


ResponseFormat = Annotated[
    TextFormat | JsonObjectFormat | JsonSchemaFormat | RegexFormat | GrammarFormat,
    Field(discriminator="type"),
    BeforeValidator(one_spelling),
]


def grammar_of(
    wanted: TextFormat | JsonObjectFormat | JsonSchemaFormat | RegexFormat | GrammarFormat | None,
    limits: ServerLimits = ServerLimits(),
) -> Grammar | None:
    """The grammar a JSON format asks for; None for others. Raises RequestError for too much of a schema."""
    if isinstance(wanted, JsonObjectFormat):
        return Grammar('{"type": "object"}')
    if isinstance(wanted, JsonSchemaFormat):
        check_schema(wanted.json_schema.definition, "response_format", limits)
        return Grammar(json.dumps(wanted.json_schema.definition))
    return None

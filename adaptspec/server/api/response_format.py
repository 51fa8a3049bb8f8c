"""`response_format` on the wire, and the grammar that it asks for."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import Field

from adaptspec.request import Grammar
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

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: str | None = None
    definition: Annotated[dict[str, Any], Field(alias="schema")]
    strict: bool | None = None


class JsonSchemaFormat(WireModel):
    """JSON that fits a schema."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


ResponseFormat = Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")]


def grammar_of(
    wanted: TextFormat | JsonObjectFormat | JsonSchemaFormat | None, limits: ServerLimits = ServerLimits()
) -> Grammar | None:
    """The grammar a format asks for; None where any text will do. Raises RequestError for too much of a schema."""
    if isinstance(wanted, JsonObjectFormat):
        return Grammar('{"type": "object"}')
    if isinstance(wanted, JsonSchemaFormat):
        check_schema(wanted.json_schema.definition, "response_format", limits)
        return Grammar(json.dumps(wanted.json_schema.definition))
    return None

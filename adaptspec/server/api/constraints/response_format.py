"""`response_format` on the wire, and the grammar that it asks for."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from adaptspec.request import Grammar
from adaptspec.server.api.constraints.format_spellings import OtherSpellings, one_spelling
from adaptspec.server.api.schemas.rewriting import rewrite
from adaptspec.server.api.schemas.schema_words import Origin
from adaptspec.server.api.warnings import Warnings
from adaptspec.server.api.wire import WireModel
from adaptspec.server.limits import ServerLimits

SCHEMA_PATH = "response_format.json_schema.schema"


class TextFormat(WireModel):
    """Any text."""

    type: Literal["text"]


class JsonObjectFormat(WireModel):
    """Any JSON object."""

    type: Literal["json_object"]


class NamedSchema(WireModel):
    """A JSON schema with a name.

    It is kept to. Without `strict`, words of it that no grammar can hold, such as `uniqueItems`, are left out, and the
    answer's `warnings` name them; with it, they are refused. An object with `properties` takes no other keys, unless it
    has `additionalProperties`.
    """

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
    OtherSpellings(),
]


class FormatField(WireModel):
    """OpenAI's word for what an answer must be."""

    response_format: ResponseFormat | None = None

    @property
    def wants_json(self) -> bool:
        return isinstance(self.response_format, (JsonObjectFormat, JsonSchemaFormat))


def schema_of(
    wanted: TextFormat | JsonObjectFormat | JsonSchemaFormat | RegexFormat | GrammarFormat | None,
    limits: ServerLimits = ServerLimits(),
    warnings: Warnings | None = None,
    path: str = SCHEMA_PATH,
) -> dict[str, Any] | None:
    """The schema a format asks for, as the compiler takes it; None for formats that are no JSON.

    `warnings` get the words that are left out, by `path`, which is that of the schema in the request.

    Raises RequestError, with the path at fault: the schema is not valid, too much, or strict and cannot be kept to.
    """
    if isinstance(wanted, JsonSchemaFormat):
        origin = Origin(path, bool(wanted.json_schema.strict))
    elif isinstance(wanted, JsonObjectFormat):
        return {"type": "object"}
    else:
        return None
    rewritten = rewrite(wanted.json_schema.definition, origin, limits)
    if warnings is not None:
        rewritten.warn(warnings)
    return rewritten.schema


def grammar_of(
    wanted: TextFormat | JsonObjectFormat | JsonSchemaFormat | RegexFormat | GrammarFormat | None,
    limits: ServerLimits = ServerLimits(),
    warnings: Warnings | None = None,
    path: str = SCHEMA_PATH,
) -> Grammar | None:
    """The grammar a JSON format asks for; None for others. Raises as `schema_of` does."""
    schema = schema_of(wanted, limits, warnings, path)
    return None if schema is None else Grammar(json.dumps(schema))

"""`response_format` on the wire, in OpenAI's spelling and in those of other servers, and the grammar that it asks for.

A schema may stand in `json_schema`, as at OpenAI; in the format itself, as in OpenAI's responses, at Together and in
llama.cpp; or in `value`, as in TGI, which also calls the type `json`. `json_schema` may leave out the name, and what
belongs to a schema may stand next to `json_schema`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, GetJsonSchemaHandler
from pydantic_core import CoreSchema

from adaptspec.request import Grammar
from adaptspec.server.api.fields import Warnings, WireModel
from adaptspec.server.api.schemas.rewriting import rewrite
from adaptspec.server.api.schemas.schema_words import Origin

SCHEMA_PATH = "response_format.json_schema.schema"
_JSON_TYPES = ("json_schema", "json_object", "json")
_DESCRIPTION_KEYS = ("name", "description", "strict")  # a schema, in the object that holds it
_SCHEMA_WORDS = ("type", "properties", "items", "$ref", "anyOf", "oneOf", "allOf", "enum", "const")

_NAMED = {
    "name": {"type": ["string", "null"], "pattern": "^[a-zA-Z0-9_-]{1,64}$"},
    "description": {"type": ["string", "null"]},
    "strict": {"type": ["boolean", "null"]},
}
_OBJECT = {"type": "object"}


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


class OtherSpellings:
    """Adds the other spellings to the schema of `response_format`."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        spellings = (
            _format(["regex"], value={"type": "string"}),
            _format(["json"]),
            _format(_JSON_TYPES, schema=_OBJECT),
            _format(_JSON_TYPES, value=_OBJECT),
        )
        return {"anyOf": [handler(schema), *spellings]}


def _format(kinds: Sequence[str], **content: Any) -> dict[str, Any]:
    named = _NAMED if _OBJECT in content.values() else {}
    return {
        "type": "object",
        "properties": {"type": {"enum": list(kinds)}, **content, **named},
        "required": ["type", *content],
        "additionalProperties": {"type": "null"},
    }


def one_spelling(value: object) -> object:
    """The same format in OpenAI's words, as far as it is known; null fields are left out.

    What else it holds stays, and is refused where it is read.
    """
    if not isinstance(value, dict):
        return value
    given = {name: inner for name, inner in value.items() if inner is not None or name == "type"}
    if given.get("type") == "regex" and "value" in given and "pattern" not in given:
        given["pattern"] = given.pop("value")
    if given.get("type") not in _JSON_TYPES:
        return given
    if isinstance(given.get("json_schema"), dict):
        outside = {name: given.pop(name) for name in _DESCRIPTION_KEYS if name in given}
        return {**given, "json_schema": {**outside, **given["json_schema"]}}
    if "value" in given and "schema" not in given:
        given |= _unwrapped(given.pop("value"))
    if "schema" not in given:
        return {**given, "type": "json_object"} if given["type"] == "json" else given
    named = {name: given.pop(name) for name in ("schema", *_DESCRIPTION_KEYS) if name in given}
    return {**given, "type": "json_schema", "json_schema": named}


def flat_spelling(value: object) -> object:
    """The same format as responses spell it, with the schema in the format itself."""
    known = one_spelling(value)
    if isinstance(known, dict) and known.get("type") == "json_schema" and isinstance(known.get("json_schema"), dict):
        return {**{name: inner for name, inner in known.items() if name != "json_schema"}, **known["json_schema"]}
    return known


def _unwrapped(value: Any) -> dict[str, Any]:
    """A schema, or one that lies in an object with its name."""
    if isinstance(value, dict) and isinstance(value.get("schema"), dict) and not any(w in value for w in _SCHEMA_WORDS):
        return value
    return {"schema": value}


Format = TextFormat | JsonObjectFormat | JsonSchemaFormat | RegexFormat | GrammarFormat
ResponseFormat = Annotated[Format, Field(discriminator="type"), BeforeValidator(one_spelling), OtherSpellings()]


class FormatField(WireModel):
    """OpenAI's word for what an answer must be."""

    response_format: ResponseFormat | None = None

    @property
    def wants_json(self) -> bool:
        return isinstance(self.response_format, (JsonObjectFormat, JsonSchemaFormat))


def schema_of(
    wanted: Format | None,
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
    rewritten = rewrite(wanted.json_schema.definition, origin)
    if warnings is not None:
        rewritten.warn(warnings)
    return rewritten.schema


def grammar_of(
    wanted: Format | None,
    warnings: Warnings | None = None,
    path: str = SCHEMA_PATH,
) -> Grammar | None:
    """The grammar a JSON format asks for; None for others. Raises as `schema_of` does."""
    schema = schema_of(wanted, warnings, path)
    return None if schema is None else Grammar(json.dumps(schema))

"""Spellings of `response_format` at other servers, turned into OpenAI's.

A schema may stand in `json_schema`, as at OpenAI; in the format itself, as in OpenAI's responses, at Together and in
llama.cpp; or in `value`, as in TGI, which also calls the type `json`. `json_schema` may leave out the name, and what
belongs to a schema may stand next to `json_schema`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import GetJsonSchemaHandler
from pydantic_core import CoreSchema

_TYPES = ("json_schema", "json_object", "json")
_DESCRIPTION_KEYS = ("name", "description", "strict")  # a schema, in the object that holds it
_SCHEMA_WORDS = ("type", "properties", "items", "$ref", "anyOf", "oneOf", "allOf", "enum", "const")

_NAMED = {
    "name": {"type": ["string", "null"], "pattern": "^[a-zA-Z0-9_-]{1,64}$"},
    "description": {"type": ["string", "null"]},
    "strict": {"type": ["boolean", "null"]},
}
_OBJECT = {"type": "object"}


class OtherSpellings:
    """Adds the other spellings to the schema of `response_format`."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        spellings = (
            _format(["regex"], value={"type": "string"}),
            _format(["json"]),
            _format(_TYPES, schema=_OBJECT),
            _format(_TYPES, value=_OBJECT),
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
    if given.get("type") not in _TYPES:
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

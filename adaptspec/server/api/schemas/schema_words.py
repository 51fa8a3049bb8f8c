"""Keywords of JSON Schema, their values, and the errors that name them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from logging import getLogger
from typing import NoReturn

from adaptspec.errors import RequestError
from adaptspec.models.grammars import schema_fault
from adaptspec.server.api.fields import loggable_key, quoted

TYPES = ("null", "boolean", "number", "integer", "string", "array", "object")
APPLICATORS = ("allOf", "anyOf", "oneOf", "$ref")
SCHEMAS = ("items", "prefixItems", "additionalItems", "additionalProperties")
COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
# Words of validation that no grammar holds, each with its values that say nothing.
NOT_HELD: Mapping[str, tuple[object, ...]] = {
    "not": (False,),
    "if": (),
    "uniqueItems": (False,),
    "contains": (),
    "propertyNames": (True, {}),
    "dependencies": ({},),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
    "unevaluatedItems": (True, {}),
    "unevaluatedProperties": (True, {}),
    "$dynamicRef": (),
    "$recursiveRef": (),
}
# Where words that are not held may name keys of the object that they stand in.
CONDITIONS = ("if", "then", "else", "dependentSchemas", "dependencies")
OF_OBJECTS = (
    "properties",
    "patternProperties",
    "additionalProperties",
    "unevaluatedProperties",
    "required",
    "minProperties",
    "maxProperties",
    *CONDITIONS,
)
PLAIN = ("type", "enum", "const", "required", "pattern", "format", *COUNTS, *BOUNDS)
KEYWORDS = frozenset((*PLAIN, *SCHEMAS, *APPLICATORS, "properties", "patternProperties"))
_FIELDS = ("tools", "response_format", "text.format")
EXTENSION = "x-guidance"  # the compiler's own options; their strings are patterns
_logger = getLogger(__name__)


class InvalidSchemaError(RequestError):
    """The value of a keyword is not what JSON Schema allows."""


@dataclass(frozen=True)
class Origin:
    """Where a schema comes from: its path in the request, and whether all of it must be kept to."""

    path: str
    strict: bool = False

    @property
    def field(self) -> str:
        """The field of the request that the path begins with."""
        return next((name for name in _FIELDS if self.path.startswith(name)), self.path)


def kind_of(value: object, path: str) -> object:
    """The value of `type`; None for any type. Raises RequestError."""
    kinds = value if isinstance(value, list) else [value]
    if "any" in kinds:  # of Draft 3
        return None
    if not kinds or not all(isinstance(one, str) and one in TYPES for one in kinds):
        refuse_value(path, value, f"one of {', '.join(TYPES)}, or a list of them")
    return value


def count_of(value: object, path: str) -> int:
    """A number of characters, items or keys. Raises RequestError."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        refuse_value(path, value, "a whole number, 0 or more")
    return value


def bound_of(name: str, value: object, path: str) -> int | float | bool:
    """A bound of a number. Raises RequestError."""
    if isinstance(value, bool) and name.startswith("exclusive"):  # of Draft 4
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)) or (name == "multipleOf" and value <= 0):
        refuse_value(path, value, "a number above 0" if name == "multipleOf" else "a number")
    return value


def refuse_value(path: str, value: object, wanted: str) -> NoReturn:
    """Raise InvalidSchemaError: the value of a keyword is not what JSON Schema allows."""
    try:
        given = quoted(json.dumps(value))
    except ValueError:
        given = "a number of thousands of digits"
    raise InvalidSchemaError(f"{path} is {given}, which is no valid JSON schema; it must be {wanted}", path)


def not_kept(path: str, why: str) -> str:
    """The words of an error: a strict schema cannot be kept to."""
    return f"{path} cannot be kept to: {why}; leave it out, or send the schema without strict: true"


def shortened(fault: str) -> str:
    """The compiler's words, if they say nothing of names and options that are not the client's."""
    if "$defs/" in fault or "coerce_one_of" in fault:
        return "no grammar can hold it"
    return fault.rpartition("error: ")[2][:120]


@lru_cache(256)
def is_known_format(name: str) -> bool:
    """Whether the compiler knows a format; one that it does not know is noted in the log."""
    known = schema_fault(json.dumps({"type": "string", "format": name}), "format") is None
    if not known:
        _logger.info("Schemas use the format %s, which is not enforced", loggable_key(name))
    return known

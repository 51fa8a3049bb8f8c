"""Schemas that would take the compiler for ever, or the process down, are refused; those of real clients are not."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, Field

from adaptspec.errors import RequestError
from adaptspec.server.api.schemas.bounds import DEEPEST, MOST_PATTERNS, check_schema
from tests.server.bounds import bounds

Json = dict[str, Any]
LONG = "ab" * 2500  # 5,000 bytes: more than a schema may spell out at once


def matching(i: int) -> Json:
    return {"type": "string", "pattern": f".*{i}.*"}


def merged(count: int) -> Json:
    return {"allOf": [matching(i) for i in range(count)]}


def chain(length: int) -> Json:
    """Every part refers to the next."""
    parts = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(length)}
    return {"$defs": {**parts, f"d{length}": {"type": "string"}}, "$ref": "#/$defs/d0"}


MANY = 20
HIDDEN = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}, matching(i)]} for i in range(MANY)}


def fivefold(leaf: Json, **more: Any) -> Json:
    """Every part refers to the next one five times, with `more` next to each reference."""
    parts = {
        f"d{i}": {"type": "object", "properties": {name: {"$ref": f"#/$defs/d{i + 1}", **more} for name in "abcde"}}
        for i in range(6)
    }
    return {"$defs": {**parts, "d6": leaf}, "$ref": "#/$defs/d0"}


def copies(item: Json) -> Json:
    """A list of fifty items, and an object with fifty fields that are multiples of 9."""
    row = {"type": "object", "properties": {f"p{i}": {"type": "integer", "multipleOf": 9} for i in range(50)}}
    return {"$defs": {"row": row}, "prefixItems": [item for _ in range(50)]}


def table(cell: Json) -> Json:
    """Of 101 rows, which are one definition, of 100 cells, which are another."""
    row = {"type": "object", "properties": {f"c{i}": {"$ref": "#/$defs/cell"} for i in range(100)}}
    rows = {f"r{i}": {"$ref": "#/$defs/row"} for i in range(101)}
    return {"type": "object", "properties": rows, "$defs": {"row": row, "cell": cell}}


# More of them are in tests/files/goldens/refusals.json.
TOO_MUCH: dict[str, Json] = {
    "patterns next to references": {"$defs": {**HIDDEN, f"d{MANY}": {"type": "string"}}, "$ref": "#/$defs/d0"},
    "patterns of one field": {"allOf": [{"type": "object", "properties": {"x": matching(i)}} for i in range(MANY)]},
    "references": chain(3000),
    "references of fields": {
        "$defs": {f"d{i}": {"properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}}} for i in range(DEEPEST)}
        | {f"d{DEEPEST}": {}},
        "$ref": "#/$defs/d0",
    },
    "a constant": {"const": LONG},
    "a field of a keyword's name, by reference": {"properties": {"const": {"title": [LONG]}}, "$ref": "#/properties"},
    "an example that is referred to": {"examples": [{"const": LONG}], "$ref": "#/examples/0"},
    "a required name": {"type": "object", "required": [LONG]},
    "below a name of an annotation": {"properties": {"description": {"const": LONG}, "default": {"enum": [LONG]}}},
    "multiples that meet": {"allOf": [{"type": "integer", "multipleOf": 9973}, {"multipleOf": 9967}]},
    "multiples next to a reference": copies({"$ref": "#/$defs/row", "required": []}),
    "multiples of all of some": copies({"allOf": [{"$ref": "#/$defs/row"}, {"required": []}]}),
    "multiples of one of some": copies({"type": "object", "anyOf": [{"$ref": "#/$defs/row"}, {"required": ["a"]}]}),
    "multiples of a field of all": copies(
        {"allOf": [{"properties": {"a": {"$ref": "#/$defs/row"}}}, {"properties": {"a": {"required": []}}}]}
    ),
    "multiples of a field and a pattern": copies(
        {"properties": {"a": {"$ref": "#/$defs/row"}}, "patternProperties": {"a": {"required": []}}}
    ),
    "references that multiply multiples": fivefold({"type": "integer", "multipleOf": 9}, required=[]),
}


@pytest.mark.parametrize("name", TOO_MUCH)
def test_what_cannot_be_compiled_in_any_time_is_refused(name: str) -> None:
    """Less than a kilobyte of patterns filled the memory; 3,000 references ended the process."""
    with pytest.raises(RequestError, match="has a schema that") as refused:
        check_schema(TOO_MUCH[name], "response_format")
    assert refused.value.param == "response_format"


class Leaf(BaseModel):
    code: str = Field(pattern="^[A-Z]{3}$", description="three letters")
    children: list[Leaf] = []


class Order(BaseModel):
    first: Leaf
    second: Leaf | None
    by_name: dict[str, Leaf]
    email: str = Field(json_schema_extra={"format": "email"})


def test_what_clients_send_is_taken() -> None:
    """Models of pydantic that refer to themselves, many patterns in fields of their own, a few that meet."""
    check_schema(Order.model_json_schema(), "tools")
    check_schema({"type": "object", "properties": {f"p{i}": matching(i) for i in range(500)}}, "tools")
    check_schema(merged(MOST_PATTERNS), "tools")
    check_schema(chain(DEEPEST // 2), "tools")
    check_schema({"type": "object", "properties": {"$ref": {"type": "string"}, "allOf": {"enum": ["$ref"]}}}, "tools")
    check_schema({"description": LONG, "default": LONG, "examples": [LONG], "type": "string"}, "tools")
    check_schema({"enum": [f"{i:04}" * 10 for i in range(2000)]}, "tools")
    annotated = {"title": LONG, "default": [LONG], "pattern": f"[{LONG}]"}
    for keyword in ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"):
        check_schema({keyword: {"const": annotated, "enum": annotated, "pattern": annotated}}, "tools")
    check_schema({"type": "string", "pattern": "^(.{1,20000}|[a-z]{100}|(https?://)?x{3})$", "minLength": 100}, "tools")
    check_schema({"type": "string", "minLength": 100_000, "maxLength": 1_000_000}, "tools")
    check_schema({"type": "array", "minItems": 100_000, "items": {"type": "number", "multipleOf": 0.01}}, "tools")
    check_schema({"properties": {f"p{i}": {"type": "integer", "multipleOf": 100} for i in range(50)}}, "tools")
    for leaf in ({"type": "string"}, {"type": "integer", "multipleOf": 9000}):
        check_schema(table(leaf), "tools")  # what many refer to is compiled once
        check_schema(fivefold(leaf), "tools")
        check_schema(fivefold(leaf, description="one of five"), "tools")
    check_schema(fivefold({"type": "string"}, required=[]), "tools")
    of_one_kind = {"$defs": {"a": merged(5), "b": {"multipleOf": 200}}}  # which do not meet
    check_schema({**of_one_kind, "$ref": "#/$defs/a"}, "tools")
    check_schema({**of_one_kind, "allOf": [{"$ref": "#/$defs/b"}]}, "tools")
    check_schema(copies({"$ref": "#/$defs/row", "title": "a row"}), "tools")
    check_schema(copies({"allOf": [{"$ref": "#/$defs/row"}], "default": {}}), "tools")
    check_schema(copies({"anyOf": [{"$ref": "#/$defs/row"}, {"type": "null"}], "default": None}), "tools")


def test_the_bounds_are_those_of_the_server() -> None:
    """Both ways: larger, and smaller."""
    schema = {
        "properties": {"a": {"const": LONG}, "b": {"multipleOf": 20_000}, "c": {"pattern": "a", "minLength": 5000}}
    }
    with bounds(schema_literal_bytes=5000, schema_multiples=20_000, schema_min_length=5000):
        check_schema(schema, "tools")
    for name, most, words in (
        ("schema_literal_bytes", 12, "13 bytes, `abcdefghijklm`; this server takes at most 12"),
        ("schema_multiples", 6, "more than 6"),
        ("schema_min_length", 7, "minLength above 7"),
    ):
        with bounds(**{name: most}), pytest.raises(RequestError, match=words):
            check_schema({"enum": ["abcdefghijklm"]} | {"multipleOf": 7} | {"pattern": "a", "minLength": 8}, "tools")

"""Schemas that would take the compiler for ever, or the process down, are refused; those of real clients are not."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, Field

from adaptspec.errors import RequestError
from adaptspec.server.api.chat import ChatBody
from adaptspec.server.api.response_format import DEEPEST, MOST_PATTERNS, check_schema

Json = dict[str, Any]


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
TOO_MUCH: dict[str, Json] = {
    "patterns of one text": merged(MANY),
    "patterns beside references": {"$defs": {**HIDDEN, f"d{MANY}": {"type": "string"}}, "$ref": "#/$defs/d0"},
    "patterns of one field": {"allOf": [{"type": "object", "properties": {"x": matching(i)}} for i in range(MANY)]},
    "below a field of a keyword's name": {"type": "object", "properties": {"$defs": merged(MANY), "allOf": {}}},
    "an item of a list": {"$defs": {"a": {"anyOf": [merged(MANY)]}}, "$ref": "#/$defs/a/anyOf/0"},
    "references": chain(3000),
    "references of fields": {
        "$defs": {f"d{i}": {"properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}}} for i in range(DEEPEST)}
        | {f"d{DEEPEST}": {}},
        "$ref": "#/$defs/d0",
    },
    "what is not there": {"$ref": "#/$defs/d0"},
    "another's": {"$ref": "https://example.org/schema.json"},
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


@pytest.mark.parametrize("name", TOO_MUCH)
def test_formats_and_tools_are_held_to_it(name: str) -> None:
    """Before a grammar is made of them."""
    schema, messages = TOO_MUCH[name], [{"role": "user", "content": "x"}]
    wanted = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    for field, value in (("response_format", wanted), ("tools", tools)):
        body = ChatBody.model_validate({"messages": messages, field: value})
        with pytest.raises(RequestError, match=f"{field} has a schema that"):
            body.grammar()

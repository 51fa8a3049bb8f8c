"""`response_format` as other servers spell it: schemas, any object, and formats that are no JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.server.api.test_structured_outputs import SCHEMA

OPTIONAL = {"name": "p", "strict": True, "description": "a person"}


SPELLINGS: list[dict[str, Any]] = [
    {"type": "json_schema", "json_schema": {"schema": SCHEMA}},
    {"type": "json_schema", **OPTIONAL, "json_schema": {"schema": SCHEMA}},
    {"type": "json_schema", "strict": True, "json_schema": {"schema": SCHEMA, **OPTIONAL}},
    {"type": "json_schema", "json_schema": {"schema": SCHEMA, **OPTIONAL}, "value": None},
    {"type": "json_schema", "schema": SCHEMA, **OPTIONAL},
    {"type": "json_schema", "value": SCHEMA},
    {"type": "json_schema", "value": {"name": "p", "schema": SCHEMA}},
    {"type": "json", "value": SCHEMA},
    {"type": "json", "schema": SCHEMA},
    {"type": "json_object", "schema": SCHEMA, "json_schema": None},
    {"type": "json_object", "value": SCHEMA},
]


@pytest.mark.parametrize("wanted", SPELLINGS)
async def test_a_schema_is_spelled_alike_in_all_routes(post: Any, engine: Any, wanted: dict[str, Any]) -> None:
    """vLLM takes formats in completions, too; in responses they stand in `text.format`."""
    bodies: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}], "response_format": wanted},
        "/v1/completions": {"prompt": "x", "response_format": wanted, "max_tokens": 3},
        "/v1/responses": {"input": "x", "text": {"format": wanted}},
    }
    texts = []
    for path, body in bodies.items():
        status, answer = await post(path, **body)
        assert status == 200, (path, answer)
        texts.append(engine.seen[-1].sampling.grammar.text)
    assert len(set(texts)) == 1
    assert json.loads(texts[0])["properties"] == SCHEMA["properties"]


@pytest.mark.parametrize(
    ("wanted", "text", "syntax"),
    [
        ({"type": "text"}, None, None),
        ({"type": "json_object"}, '{"type": "object"}', "json-schema"),
        ({"type": "regex", "value": "a+"}, "a+", "regex"),
        ({"type": "grammar", "grammar": 'start: "a"'}, 'start : "a"\n', "lark"),
    ],
)
async def test_completions_take_every_format(post: Any, engine: Any, wanted: Any, text: Any, syntax: Any) -> None:
    status, answer = await post("/v1/completions", prompt=["x", "y"], response_format=wanted, max_tokens=3)
    assert status == 200, answer
    found = [request.sampling.grammar for request in engine.seen]
    assert [None if one is None else (one.text, one.syntax) for one in found] == [text and (text, syntax)] * 2

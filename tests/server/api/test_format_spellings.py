"""`response_format` as other servers spell it: schemas, any object, and formats that are no JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adaptspec.errors import RequestError
from adaptspec.server.api.chat import ChatBody
from adaptspec.server.api.wire import parse
from tests.server.api.test_structured_outputs import SCHEMA, TOOL

SAYS = [{"role": "user", "content": "x"}]
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
def test_a_schema_may_be_spelled_as_elsewhere(wanted: dict[str, Any]) -> None:
    """OpenAI's chats and responses, llama.cpp, Together, and TGI in two ages."""
    chat = {"messages": [{"role": "user", "content": "Hi"}], "response_format": wanted}
    grammar = parse(ChatBody, json.dumps(chat).encode()).grammar()
    assert grammar is not None
    assert json.loads(grammar.text)["properties"] == SCHEMA["properties"]


@pytest.mark.parametrize("wanted", [{"type": "json"}, {"type": "json_object", "schema": None}])
def test_any_object_is_spelled_as_elsewhere(wanted: dict[str, Any]) -> None:
    chat = {"messages": [{"role": "user", "content": "Hi"}], "response_format": wanted}
    grammar = parse(ChatBody, json.dumps(chat).encode()).grammar()
    assert grammar is not None
    assert json.loads(grammar.text) == {"type": "object"}


@pytest.mark.parametrize(
    ("wanted", "text", "syntax"),
    [
        ({"type": "regex", "value": "a+"}, "a+", "regex"),
        ({"type": "regex", "pattern": "a+"}, "a+", "regex"),
        ({"type": "grammar", "grammar": 'start: "a"'}, 'start : "a"', "lark"),
    ],
)
def test_a_format_may_be_no_json(wanted: dict[str, Any], text: str, syntax: str) -> None:
    """TGI's, Together's and Fireworks'; next to tools it is refused like the others."""
    chat = {"messages": [{"role": "user", "content": "Hi"}], "response_format": wanted}
    grammar = parse(ChatBody, json.dumps(chat).encode()).grammar()
    assert grammar is not None
    assert (grammar.text.strip(), grammar.syntax) == (text, syntax)
    for more in ({"tools": [TOOL]}, {"guided_regex": "a"}):
        with pytest.raises(RequestError, match="both say what to write"):
            parse(ChatBody, json.dumps(chat | more).encode())


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

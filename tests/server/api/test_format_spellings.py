"""`response_format` as other servers spell it: schemas, any object, and formats that are no JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adaptspec.errors import RequestError
from adaptspec.server.api.chat import ChatBody
from adaptspec.server.api.wire import parse
from tests.server.api.test_structured_outputs import SCHEMA, TOOL

OPTIONAL = {"name": "p", "strict": True, "description": "a person"}


@pytest.mark.parametrize(
    "wanted",
    [
        {"type": "json_schema", "json_schema": {"schema": SCHEMA}},
        {"type": "json_schema", "json_schema": {"schema": SCHEMA, **OPTIONAL}, "value": None},
        {"type": "json_schema", "schema": SCHEMA, **OPTIONAL},
        {"type": "json_schema", "value": SCHEMA},
        {"type": "json_schema", "value": {"name": "p", "schema": SCHEMA}},
        {"type": "json", "value": SCHEMA},
        {"type": "json", "schema": SCHEMA},
        {"type": "json_object", "schema": SCHEMA, "json_schema": None},
        {"type": "json_object", "value": SCHEMA},
    ],
)
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
    """TGI's, Together's and Fireworks'; beside tools it is refused like the others."""
    chat = {"messages": [{"role": "user", "content": "Hi"}], "response_format": wanted}
    grammar = parse(ChatBody, json.dumps(chat).encode()).grammar()
    assert grammar is not None
    assert (grammar.text.strip(), grammar.syntax) == (text, syntax)
    for more in ({"tools": [TOOL]}, {"guided_regex": "a"}):
        with pytest.raises(RequestError, match="both say what to write"):
            parse(ChatBody, json.dumps(chat | more).encode())


@pytest.mark.parametrize(
    ("wanted", "param"),
    [
        ({"type": "json_schema"}, "response_format.json_schema"),
        ({"type": "json_schema", "value": 3}, "response_format"),
        ({"type": "json_schema", "schema": SCHEMA, "shcema": {}}, "response_format.shcema"),
        ({"type": "json_schema", "json_schema": {"schema": SCHEMA}, "value": SCHEMA}, "response_format"),
        ({"type": "xml"}, "response_format"),
    ],
)
def test_what_is_no_spelling_is_refused_by_name(wanted: dict[str, Any], param: str) -> None:
    chat = {"messages": [{"role": "user", "content": "Hi"}], "response_format": wanted}
    with pytest.raises(RequestError) as refused:
        parse(ChatBody, json.dumps(chat).encode())
    assert str(refused.value.param).startswith(param)

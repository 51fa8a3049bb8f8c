"""Messages as chat templates get them."""

from __future__ import annotations

import pytest

from adaptspec.errors import RequestError
from adaptspec.server.api.chat import ChatBody
from adaptspec.server.api.messages import Message
from adaptspec.server.api.response_format import JsonObjectFormat, JsonSchemaFormat, TextFormat, grammar_of


@pytest.mark.parametrize(("written", "read"), [('{"a": 1}', {"a": 1}), ("", {}), ("{broken", "{broken")])
def test_arguments_are_objects_where_they_can_be_read(written: str, read: object) -> None:
    """Templates write objects out themselves; what a client broke stays as it is."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": written}}
    message = Message.model_validate({"role": "assistant", "content": None, "tool_calls": [call]})
    assert message.plain()["tool_calls"][0]["function"]["arguments"] == read
    assert message.plain()["content"] == ""


def test_a_message_that_is_none_is_named_by_its_place() -> None:
    """What no single field can say."""
    with pytest.raises(RequestError) as refused:
        ChatBody.model_validate({"messages": [{"role": "user", "content": "x"}, {"role": "assistant"}]})
    assert refused.value.param == "messages[1].content"


def test_formats_become_grammars() -> None:
    """Text needs none."""
    assert grammar_of(None) is grammar_of(TextFormat(type="text")) is None
    assert grammar_of(JsonObjectFormat(type="json_object")) is not None
    named = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "integer"}}}
    grammar = grammar_of(JsonSchemaFormat.model_validate(named))
    assert grammar is not None
    assert grammar.text == '{"type": "integer"}'

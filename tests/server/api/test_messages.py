"""Messages as chat templates get them."""

from __future__ import annotations

from typing import Any

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


TEXT = {"type": "text", "text": "What is this?"}
INPUT_TEXT = {"type": "input_text", "text": "What is this?"}
MEDIA = [
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
    {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
    {"type": "file", "file": {"file_id": "file-1"}},
    {"type": "video_url", "video_url": {"url": "http://localhost/x.mp4"}},
    {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "auto"},
    {"type": "input_file", "filename": "x.pdf", "file_data": "AAAA"},
    {"type": "image", "source": {"type": "base64", "data": "AAAA"}},
]
CALLED = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}


@pytest.mark.parametrize("part", MEDIA)
async def test_images_sounds_and_files_are_refused_at_their_place(post: Any, engine: Any, part: dict[str, Any]) -> None:
    """In one sentence, in chats, responses, results of calls and /tokenize."""
    messages = [{"role": "user", "content": [TEXT, part]}]
    said = {"role": "user", "content": [INPUT_TEXT, part]}
    result = {"type": "function_call_output", "call_id": "c", "output": [INPUT_TEXT, part]}
    for path, body, param in (
        ("/v1/chat/completions", {"messages": messages}, "messages[0].content[1]"),
        ("/tokenize", {"messages": messages}, "messages[0].content[1]"),
        ("/v1/responses", {"input": [said]}, "input[0].content[1]"),
        ("/v1/responses", {"input": [{"role": "user", "content": "x"}, CALLED, result]}, "input[2].output[1]"),
    ):
        status, answer = await post(path, **body)
        error = answer["error"]
        assert (status, error["param"]) == (400, param)
        assert error["message"] == (
            f"this server reads text only; `{param}` is of the type {part['type']}: leave it out, or write its content "
            "as text"
        )
    assert not engine.seen


async def test_several_texts_are_one_message(post: Any, engine: Any) -> None:
    """What the refusal of other parts must not touch."""
    assert (await post("/v1/chat/completions", messages=[{"role": "user", "content": [TEXT, TEXT]}]))[0] == 200
    assert (await post("/v1/responses", input=[{"role": "user", "content": [INPUT_TEXT, INPUT_TEXT]}]))[0] == 200
    assert engine.seen[0].prompt == engine.seen[1].prompt


def test_formats_become_grammars() -> None:
    """Text needs none."""
    assert grammar_of(None) is grammar_of(TextFormat(type="text")) is None
    assert grammar_of(JsonObjectFormat(type="json_object")) is not None
    named = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "integer"}}}
    grammar = grammar_of(JsonSchemaFormat.model_validate(named))
    assert grammar is not None
    assert grammar.text == '{"type": "integer"}'

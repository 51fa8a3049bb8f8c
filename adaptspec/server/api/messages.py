"""A conversation on the wire, tool calls and their results included, and as chat templates want it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, ValidationError, WithJsonSchema
from pydantic_core import PydanticCustomError

from adaptspec.errors import RequestError
from adaptspec.server.api.wire import NOT_TEXT, WireModel, without_no_ops

MAX_CALLS = 128  # in one message, as many as there may be tools
_TEXT_PART = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
    "additionalProperties": False,
}
TEXT_SCHEMA: dict[str, Any] = {"anyOf": [{"type": "string"}, {"type": "array", "items": _TEXT_PART, "minItems": 1}]}
_NULLABLE: dict[str, Any] = {"anyOf": [*TEXT_SCHEMA["anyOf"], {"type": "null"}]}
FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]

# Messages are the result of a call, or text, or calls of the assistant with or without text.
_NOTHING, _SOMETHING = {"type": "null"}, {"type": ["string", "array"]}
_NO_CALLS: dict[str, Any] = {"anyOf": [_NOTHING, {"type": "array", "maxItems": 0}]}
_RESULT: dict[str, Any] = {
    "properties": {
        "role": {"const": "tool"},
        "tool_call_id": {"type": "string"},
        "tool_calls": _NO_CALLS,
        "content": _SOMETHING,
    },
    "required": ["tool_call_id", "content"],
}
_SAID: dict[str, Any] = {
    "properties": {
        "role": {"not": {"const": "tool"}},
        "tool_call_id": _NOTHING,
        "tool_calls": _NO_CALLS,
        "content": _SOMETHING,
    },
    "required": ["content"],
}
_CALLED: dict[str, Any] = {
    "properties": {
        "role": {"const": "assistant"},
        "tool_call_id": _NOTHING,
        "tool_calls": {"type": "array", "minItems": 1},
    },
    "required": ["tool_calls"],
}


# Parts of a message that OpenAI's and others' clients send, and that are no text.
_MEDIA = frozenset(
    {"image_url", "image", "input_image", "input_audio", "audio_url", "audio", "video_url", "video", "input_video"}
    | {"file", "input_file", "document"}
)


def refuse_media(content: object) -> object:
    """The same content; a validation error at the first part of it that is an image, a sound or a file."""
    for index, part in enumerate(content if isinstance(content, list) else ()):
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(kind, str) and kind in _MEDIA:
            error = PydanticCustomError(NOT_TEXT, "is of the type {kind}", {"kind": kind})
            raise ValidationError.from_exception_data("content", [{"type": error, "loc": (index,), "input": kind}])
    return content


def _text(value: object) -> str:
    """Content as one string: text parts are joined by line ends, as chat templates expect."""
    refuse_media(value)
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(_is_text_part(part) for part in value):
        return "\n".join(part["text"] for part in value)
    raise PydanticCustomError(
        "content", "it must be a string or a list of text parts {example}", {"example": '{"type": "text", "text": ...}'}
    )


def _is_text_part(part: object) -> bool:
    return (
        isinstance(part, dict)
        and part.keys() == {"type", "text"}
        and part["type"] == "text"
        and isinstance(part["text"], str)
    )


def _text_if_any(value: object) -> str | None:
    return None if value is None else _text(value)


Text = Annotated[str, PlainValidator(_text), WithJsonSchema(TEXT_SCHEMA)]


class CalledFunction(WireModel):
    """What an assistant called: a function's name, and its arguments as the text of a JSON object."""

    name: FunctionName
    arguments: str


class ToolCall(WireModel):
    """One call in an assistant's message."""

    id: Annotated[str, Field(min_length=1, max_length=256)]
    type: Literal["function"]
    function: CalledFunction


class Message(WireModel):
    """One message of a conversation; `content` is a string once read, None only beside tool calls."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str | None, PlainValidator(_text_if_any), WithJsonSchema(_NULLABLE)] = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=MAX_CALLS, fail_fast=True)] | None = None
    tool_call_id: str | None = None

    # What an assistant's message carries when a client sends it back as it came.
    no_ops: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "refusal": (None,),
        "function_call": (None,),
        "audio": (None,),
        "annotations": (None, []),
    }

    together: ClassVar[Sequence[Mapping[str, Any]]] = ({"anyOf": [_RESULT, _SAID, _CALLED]},)

    def check(self, place: str) -> None:
        """What no single field can say; `place` is where the message stands. Raises RequestError."""
        if self.tool_calls and self.role != "assistant":
            raise RequestError(f"{place}.tool_calls: only an assistant's message has calls", f"{place}.tool_calls")
        if (self.tool_call_id is None) is (self.role == "tool"):
            raise RequestError(
                f"{place}.tool_call_id belongs to messages of the role tool, and these need it", f"{place}.tool_call_id"
            )
        if self.content is None and not self.tool_calls:
            raise RequestError(f"{place}.content is missing; add the text of the message", f"{place}.content")

    @property
    def characters(self) -> int:
        calls = sum(len(call.function.arguments) for call in self.tool_calls or ())
        return len(self.content or "") + calls

    def plain(self) -> dict[str, Any]:
        """For a chat template; developer is the newer word for system."""
        role = "system" if self.role == "developer" else self.role
        message: dict[str, Any] = {"role": role, "content": self.content or ""}
        if self.tool_calls:
            message["tool_calls"] = [_plain_call(call) for call in self.tool_calls]
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        return message


def _plain_call(call: ToolCall) -> dict[str, Any]:
    try:
        arguments = json.loads(call.function.arguments or "{}")
    except (ValueError, RecursionError):
        arguments = call.function.arguments
    return {"type": "function", "id": call.id, "function": {"name": call.function.name, "arguments": arguments}}


def _checked(messages: list[Message]) -> list[Message]:
    for index, message in enumerate(messages):
        message.check(f"messages[{index}]")
    return messages


Messages = Annotated[
    list[Annotated[Message, BeforeValidator(without_no_ops(Message))]],
    Field(min_length=1, max_length=4096, fail_fast=True),
    AfterValidator(_checked),
]

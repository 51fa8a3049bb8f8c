"""A conversation on the wire, tool calls and their results included, and as chat templates want it.

Histories come from many clients, so one rule decides each kind of thing in them. Text parts of any name are text.
Reasoning goes to the chat template, which decides about it. Keys that are known to carry nothing for a model are left
out. Other keys are dropped with a warning. Images, sounds and files are refused. Messages without text are empty texts
where answers or results of calls can be empty, and refused elsewhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    Field,
    PlainValidator,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from adaptspec.errors import RequestError
from adaptspec.server.api.warnings import Warnings
from adaptspec.server.api.wire import NOT_TEXT, LenientModel, drop_keys, shown

MAX_CALLS = 128  # in one message, as many as there may be tools
# Parts of a message that are text, and the key that has it: those of chats, of responses, and of their answers.
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
# Parts in which a model thought: what other servers' answers have, as they come back.
_REASONING_PARTS = frozenset({"thinking", "redacted_thinking", "reasoning", "reasoning_text", "summary_text"})
# Keys of parts, calls and messages that no model has a use for: places in a list, hints for caches, citations.
IDLE_KEYS = frozenset(
    {"annotations", "cache_control", "id", "index", "logprobs", "prompt_cache_breakpoint", "status", "type"}
)
_PARTS = [
    {"type": "object", "properties": {"type": {"const": kind}, key: {"type": "string"}}, "required": ["type", key]}
    for kind, key in _TEXT_PARTS.items()
]
_REASONED = {"type": "object", "properties": {"type": {"enum": sorted(_REASONING_PARTS)}}, "required": ["type"]}
TEXT_SCHEMA: dict[str, Any] = {
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"anyOf": [*_PARTS, _REASONED]}}]
}
_NULLABLE: dict[str, Any] = {"anyOf": [*TEXT_SCHEMA["anyOf"], {"type": "null"}]}
# Names of MCP's tools have dots and slashes; none of these characters needs an escape in JSON.
FUNCTION_NAME = r"^[a-zA-Z0-9_.:/-]{1,128}$"
NAME_RULE = "1 to 128 letters, digits and characters of _ . : / -"


def _function_name(name: str) -> str:
    if not re.fullmatch(FUNCTION_NAME, name):
        raise PydanticCustomError("function_name", f"it must be {NAME_RULE}; rename the function")
    return name


FunctionName = Annotated[
    str, AfterValidator(_function_name), WithJsonSchema({"type": "string", "pattern": FUNCTION_NAME})
]
CALL_OF_FUNCTION = "function0"  # the id of a call in OpenAI's older form, which has none

# Messages are text, the result of a call, or an answer, which may have calls and may be empty.
_NOTHING, _SOMETHING = {"type": "null"}, {"type": ["string", "array"]}
_NO_CALLS: dict[str, Any] = {"anyOf": [_NOTHING, {"type": "array", "maxItems": 0}]}
_RESULT: dict[str, Any] = {
    "properties": {"role": {"const": "tool"}, "tool_call_id": {"type": "string"}, "tool_calls": _NO_CALLS},
    "required": ["tool_call_id"],
}
_OLD_RESULT: dict[str, Any] = {"properties": {"role": {"const": "function"}, "tool_calls": _NO_CALLS}}
_SAID: dict[str, Any] = {
    "properties": {
        "role": {"enum": ["system", "developer", "user"]},
        "tool_call_id": _NOTHING,
        "tool_calls": _NO_CALLS,
    },
    "anyOf": [
        {"properties": {"content": _SOMETHING}, "required": ["content"]},
        {"properties": {"refusal": {"type": "string"}}, "required": ["refusal"]},
    ],
}
_ANSWERED: dict[str, Any] = {"properties": {"role": {"const": "assistant"}, "tool_call_id": _NOTHING}}


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


def _text(value: object, info: ValidationInfo) -> str:
    """Content as one string: text parts are joined by line ends, as chat templates expect."""
    refuse_media(value)
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise PydanticCustomError(
            "content", "it must be a string or a list of text parts {example}", {"example": _TEXT_EXAMPLE}
        )
    texts = [_text_of(part, index, info) for index, part in enumerate(value)]
    return "\n".join(text for text in texts if text is not None)


_TEXT_EXAMPLE = '{"type": "text", "text": ...}'


def _text_of(part: object, index: int, info: ValidationInfo) -> str | None:
    """The text of a part; None for reasoning. A validation error at the part for what is neither."""
    kind = part.get("type") if isinstance(part, dict) else None
    key = _TEXT_PARTS.get(kind) if isinstance(kind, str) else None
    if isinstance(part, dict) and isinstance(kind, str) and kind in _REASONING_PARTS:
        drop_keys({kind: True}, IDLE_KEYS, "content[]", info)
        return None
    if isinstance(part, dict) and key is not None and isinstance(part.get(key), str):
        drop_keys(part, IDLE_KEYS | {key}, "content[]", info)
        text: str = part[key]
        return text
    given = f"the type {shown(kind)} is not" if isinstance(kind, str) and key is None else "this is not"
    error = PydanticCustomError(
        "part", "{given} a text part such as {example}", {"given": given, "example": _TEXT_EXAMPLE}
    )
    raise ValidationError.from_exception_data("content", [{"type": error, "loc": (index,), "input": None}])


def _text_if_any(value: object, info: ValidationInfo) -> str | None:
    return None if value is None else _text(value, info)


Text = Annotated[str, PlainValidator(_text), WithJsonSchema(TEXT_SCHEMA)]
TextIfAny = Annotated[str | None, PlainValidator(_text_if_any), WithJsonSchema(_NULLABLE)]


class CalledFunction(LenientModel):
    """What an assistant called: a function's name, and its arguments as the text of a JSON object."""

    name: FunctionName
    arguments: str = ""

    where: ClassVar[str] = "tool_calls[].function"
    idle: ClassVar[frozenset[str]] = IDLE_KEYS | {"description", "parsed_arguments"}


class ToolCall(LenientModel):
    """One call in an assistant's message."""

    id: Annotated[str, Field(min_length=1, max_length=256)]
    type: Literal["function"] = "function"
    function: CalledFunction

    where: ClassVar[str] = "tool_calls[]"
    idle: ClassVar[frozenset[str]] = IDLE_KEYS

    @model_validator(mode="before")
    @classmethod
    def _custom(cls, value: Any, info: ValidationInfo) -> Any:
        """A call of OpenAI's custom tools, whose input is any text, as the call of a function."""
        custom = value.get("custom") if isinstance(value, dict) and value.get("type") == "custom" else None
        if not isinstance(custom, dict) or not isinstance(custom.get("input"), str):
            return value
        if isinstance(info.context, Warnings):
            info.context.add("item", "tool_calls[] of the type custom are read as calls of functions")
        arguments = json.dumps({"input": custom["input"]}, ensure_ascii=False)
        others = {name: inner for name, inner in value.items() if name != "custom"}
        return {**others, "type": "function", "function": {"name": custom.get("name"), "arguments": arguments}}


class Message(LenientModel):
    """One message of a conversation; `content` is a string once read, None only where it may be empty."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: TextIfAny = None
    name: Annotated[str, Field(max_length=256)] | None = None
    reasoning_content: str | None = None
    function_call: CalledFunction | None = None  # OpenAI's older form of a call; it is read as one of `tool_calls`
    tool_calls: Annotated[list[ToolCall], Field(max_length=MAX_CALLS, fail_fast=True)] | None = None
    tool_call_id: str | None = None

    where: ClassVar[str] = "messages[]"
    # What answers carry in addition to their text, here and elsewhere, when a client sends them back as they came.
    idle: ClassVar[frozenset[str]] = IDLE_KEYS | {"parsed", "reasoning"}
    together: ClassVar[Sequence[Mapping[str, Any]]] = ({"anyOf": [_RESULT, _OLD_RESULT, _SAID, _ANSWERED]},)

    @model_validator(mode="before")
    @classmethod
    def _newer_words(cls, value: Any) -> Any:
        """The same with `reasoning`, `refusal`, and calls and results of OpenAI's older form under newer names."""
        if not isinstance(value, dict):
            return value
        value = dict(value)
        if isinstance(reasoning := value.get("reasoning"), str):
            value.setdefault("reasoning_content", reasoning)
        if value.get("function_call") is not None and not value.get("tool_calls"):
            value["tool_calls"] = [{"id": CALL_OF_FUNCTION, "type": "function", "function": value["function_call"]}]
        if value.get("role") == "function":
            given = value.get("tool_call_id")
            value |= {"role": "tool", "tool_call_id": CALL_OF_FUNCTION if given is None else given}
        refusal = value.pop("refusal", None)
        if isinstance(refusal, str) and value.get("content") in (None, "", []):
            value["content"] = refusal
        return value

    def check(self, place: str) -> None:
        """What no single field can say; `place` is where the message stands. Raises RequestError."""
        if self.tool_calls and self.role != "assistant":
            raise RequestError(f"{place}.tool_calls: only an assistant's message has calls", f"{place}.tool_calls")
        if (self.tool_call_id is None) is (self.role == "tool"):
            raise RequestError(
                f"{place}.tool_call_id belongs to messages of the role tool, and these need it", f"{place}.tool_call_id"
            )
        if self.content is None and self.role in ("system", "developer", "user"):
            raise RequestError(f"{place}.content is missing; add the text of the message", f"{place}.content")

    @property
    def characters(self) -> int:
        calls = sum(len(call.function.arguments) for call in self.tool_calls or ())
        return len(self.content or "") + len(self.reasoning_content or "") + calls

    def plain(self) -> dict[str, Any]:
        """For a chat template; developer is the newer word for system."""
        role = "system" if self.role == "developer" else self.role
        message: dict[str, Any] = {"role": role, "content": self.content or ""}
        if self.name:
            message["name"] = self.name
        if self.reasoning_content is not None:
            message["reasoning_content"] = self.reasoning_content
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
    list[Message],
    Field(min_length=1, max_length=4096, fail_fast=True),
    AfterValidator(_checked),
]

"""A conversation on the wire, tool calls and their results included, and as chat templates want it.

Histories come from many clients, so one rule decides each kind of thing in them. Text parts of any name are text.
Reasoning goes to the chat template, which decides about it. Keys that are known to carry nothing for a model are left
out. Other keys are dropped with a warning. Images, sounds and files are refused. Messages without text are empty texts
where answers or results of calls can be empty, and refused elsewhere.
"""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, PlainValidator, ValidationError, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

from adaptspec.errors import RequestError
from adaptspec.server import limits
from adaptspec.server.api.fields import NOT_TEXT, AtMost, LenientModel, Name, drop_keys, quoted, warnings_of

# Parts of a message that are text, and the key that has it: those of chats, of responses, and of their answers.
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
# Parts in which a model thought: what other servers' answers have, as they come back.
_REASONING_PARTS = frozenset({"thinking", "redacted_thinking", "reasoning", "reasoning_text", "summary_text"})
# Keys of parts, calls and messages that no model has a use for: indices in a list, hints for caches, citations.
IDLE_KEYS = frozenset(
    {"annotations", "cache_control", "id", "index", "logprobs", "prompt_cache_breakpoint", "status", "type"}
)
# Names of MCP's tools have dots and slashes; none of these characters needs an escape in JSON.
FUNCTION_NAME = r"^[a-zA-Z0-9_.:/-]{1,128}$"
NAME_RULE = "1 to 128 letters, digits and characters of _ . : / -"


def _function_name(name: str) -> str:
    if not re.fullmatch(FUNCTION_NAME, name):
        raise PydanticCustomError("function_name", f"it must be {NAME_RULE}; rename the function")
    return name


FunctionName = Annotated[str, AfterValidator(_function_name), Field(json_schema_extra={"pattern": FUNCTION_NAME})]
CALL_OF_FUNCTION = "function0"  # the id of a call in OpenAI's older form, which has none

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
    given = f"the type {quoted(kind)} is not" if isinstance(kind, str) and key is None else "this is not"
    error = PydanticCustomError(
        "part", "{given} a text part such as {example}", {"given": given, "example": _TEXT_EXAMPLE}
    )
    raise ValidationError.from_exception_data("content", [{"type": error, "loc": (index,), "input": None}])


def _text_if_any(value: object, info: ValidationInfo) -> str | None:
    return None if value is None else _text(value, info)


_Parts = list[dict[str, Any]]
Text = Annotated[str, PlainValidator(_text, json_schema_input_type=str | _Parts)]
TextIfAny = Annotated[str | None, PlainValidator(_text_if_any, json_schema_input_type=str | _Parts | None)]


class CalledFunction(LenientModel):
    """What an assistant called: a function's name, and its arguments as the text of a JSON object."""

    name: FunctionName
    arguments: str = ""

    where: ClassVar[str] = "tool_calls[].function"
    idle: ClassVar[frozenset[str]] = IDLE_KEYS | {"description", "parsed_arguments"}


class ToolCall(LenientModel):
    """One call in an assistant's message."""

    id: Name
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
        warnings_of(info).add("item", "tool_calls[] of the type custom are read as calls of functions")
        arguments = json.dumps({"input": custom["input"]}, ensure_ascii=False)
        others = {name: inner for name, inner in value.items() if name != "custom"}
        return {**others, "type": "function", "function": {"name": custom.get("name"), "arguments": arguments}}


class Message(LenientModel):
    """One message of a conversation; `content` is a string once read, None only where it may be empty."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: TextIfAny = None
    name: Annotated[str, Field(max_length=limits.NAME_CHARACTERS)] | None = None
    reasoning_content: str | None = None
    function_call: CalledFunction | None = None  # OpenAI's older form of a call; it is read as one of `tool_calls`
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True), AtMost(limits.TOOLS)] | None = None
    tool_call_id: str | None = None

    where: ClassVar[str] = "messages[]"
    # What answers carry in addition to their text, here and elsewhere, when a client sends them back as they came.
    idle: ClassVar[frozenset[str]] = IDLE_KEYS | {"parsed", "reasoning"}

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

    def check(self, path: str) -> None:
        """Check its fields together; `path` is that of the message. Raises RequestError."""
        if self.tool_calls and self.role != "assistant":
            raise RequestError(f"{path}.tool_calls: only an assistant's message has calls", f"{path}.tool_calls")
        if self.role == "tool" and self.tool_call_id is None:
            raise RequestError(f"{path}.tool_call_id is missing; add the id of the call", f"{path}.tool_call_id")
        if self.role != "tool" and self.tool_call_id is not None:
            raise RequestError(
                f"{path}.tool_call_id is only for messages of the role tool; leave it out", f"{path}.tool_call_id"
            )
        if self.content is None and self.role in ("system", "developer", "user"):
            raise RequestError(f"{path}.content is missing; add the text of the message", f"{path}.content")

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
    Field(min_length=1, fail_fast=True),
    AtMost(limits.MESSAGES),
    AfterValidator(_checked),
]

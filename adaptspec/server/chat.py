"""`/v1/chat/completions` on the wire: its body, and the shapes of its answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, PlainValidator
from pydantic_core import PydanticCustomError

from adaptspec.errors import RequestError
from adaptspec.server.wire import GenerationBody, Int, WireModel, without_no_ops
from adaptspec.types import Completion


def _text(value: object) -> str:
    """A message's content as one string: text parts are joined by line ends, as chat templates expect."""
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


class Message(WireModel):
    """One message of a conversation; `content` is always a string once read."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, PlainValidator(_text)]

    # What an assistant's message carries when a client sends it back as it came.
    no_ops: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "refusal": (None,),
        "tool_calls": (None, []),
        "function_call": (None,),
        "audio": (None,),
        "annotations": (None, []),
    }

    def plain(self) -> dict[str, str]:
        """For a chat template; developer is the newer word for system."""
        return {"role": "system" if self.role == "developer" else self.role, "content": self.content}


Messages = Annotated[
    list[Annotated[Message, BeforeValidator(without_no_ops(Message))]], Field(min_length=1, max_length=4096)
]


class ChatBody(GenerationBody):
    """A request for the next message of a conversation."""

    messages: Messages
    max_completion_tokens: Int | None = None
    safety_identifier: str | None = None  # the newer name of user
    prompt_cache_key: str | None = None  # a hint to a cache; changes no answer

    no_ops: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "n": (1, None),
        "logprobs": (False, None),
        "top_logprobs": (None,),
        "response_format": ({"type": "text"}, None),
        "tools": (None, []),
        "tool_choice": (None, "none"),
        "parallel_tool_calls": (None,),
        "functions": (None, []),
        "function_call": (None, "none"),
        "modalities": (["text"], None),
        "audio": (None,),
        "prediction": (None,),
        "reasoning_effort": (None,),
        "verbosity": (None,),
        "store": (False, None),
        "metadata": (None, {}),
        "service_tier": (None, "auto", "default"),
        "web_search_options": (None,),
    }

    prompt_field: ClassVar[str] = "messages"
    operation: ClassVar[str] = "chat"

    @property
    def characters(self) -> list[int]:
        """Of the one prompt that all messages are together, without what the template adds."""
        return [sum(len(message.content) for message in self.messages)]

    @property
    def contents(self) -> list[dict[str, str]]:
        """See `GenerationBody.contents`."""
        return [message.plain() for message in self.messages]

    @property
    def wanted_tokens(self) -> int | None:
        """Output tokens asked for; None is as many as the context has room for."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def tokens_field(self) -> str | None:
        """See `GenerationBody.tokens_field`."""
        return super().tokens_field if self.max_completion_tokens is None else "max_completion_tokens"

    def check(self) -> None:
        """What no single field can say. Raises RequestError."""
        super().check()
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise RequestError("send max_completion_tokens or max_tokens, not both", "max_tokens")


class ChatDialect:
    """How chat completions are written."""

    id_prefix = "chatcmpl"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def choice(self, index: int, completion: Completion) -> dict[str, Any]:
        """A whole answer."""
        message = {"role": "assistant", "content": completion.text, "refusal": None}
        return {"index": index, "message": message, "logprobs": None, "finish_reason": completion.finish.value}

    def opening(self, index: int) -> dict[str, Any] | None:
        """Who speaks."""
        return _choice(index, {"role": "assistant", "content": ""}, None)

    def piece(self, index: int, text: str) -> dict[str, Any]:
        """A piece of an answer."""
        return _choice(index, {"content": text}, None)

    def ending(self, index: int, completion: Completion) -> dict[str, Any]:
        """The end of an answer."""
        return _choice(index, {}, completion.finish.value)


def _choice(index: int, delta: dict[str, str], finish: str | None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}

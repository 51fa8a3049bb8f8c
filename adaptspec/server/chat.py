"""`/v1/chat/completions` on the wire: its body, and the shapes of its answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, PlainValidator
from pydantic_core import PydanticCustomError

from adaptspec.errors import RequestError
from adaptspec.server.logprobs import Bytes, chat_logprobs
from adaptspec.server.wire import Alternatives, GenerationBody, Int, WireModel, without_no_ops
from adaptspec.types import Completion, Delta, TokenLogprob

Json = dict[str, Any]


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
    logprobs: bool | None = None
    top_logprobs: Alternatives | None = None
    safety_identifier: str | None = None  # the newer name of user
    prompt_cache_key: str | None = None  # a hint to a cache; changes no answer

    no_ops: ClassVar[Mapping[str, tuple[object, ...]]] = {
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

    @property
    def characters(self) -> list[int]:
        """Of the one prompt that all messages are together, without what the template adds."""
        return [sum(len(message.content) for message in self.messages)]

    @property
    def wanted_tokens(self) -> int | None:
        """Output tokens asked for; None is as many as the context has room for."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def tokens_field(self) -> str | None:
        """See `GenerationBody.tokens_field`."""
        return super().tokens_field if self.max_completion_tokens is None else "max_completion_tokens"

    @property
    def alternatives(self) -> int | None:
        """See `GenerationBody.alternatives`."""
        return (self.top_logprobs or 0) if self.logprobs else None

    def check(self) -> None:
        """What no single field can say. Raises RequestError."""
        super().check()
        if self.top_logprobs is not None and not self.logprobs:
            raise RequestError("top_logprobs needs logprobs: true; leave it out otherwise", "top_logprobs")
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise RequestError("send max_completion_tokens or max_tokens, not both", "max_tokens")


class ChatDialect:
    """How chat completions are written."""

    id_prefix = "chatcmpl"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, bytes_of: Bytes, *, logprobs: bool = False) -> None:
        """`logprobs`: tell those of every token."""
        self._bytes_of = bytes_of
        self._logprobs = logprobs

    def choice(self, index: int, completion: Completion) -> Json:
        """A whole answer."""
        message = {"role": "assistant", "content": completion.text, "refusal": None}
        logprobs = self._written(completion.logprobs)
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": completion.finish.value}

    def chunks(self, index: int, delta: Delta, *, first: bool) -> Iterator[Json]:
        """What one piece of an answer adds; who speaks comes first."""
        if first:
            yield _choice(index, {"role": "assistant", "content": ""}, None, None)
        if delta.text or (self._logprobs and delta.tokens):
            yield _choice(index, {"content": delta.text}, self._written(delta.logprobs), None)
        if delta.completion is not None:
            yield _choice(index, {}, None, delta.completion.finish.value)

    def _written(self, entries: Sequence[TokenLogprob]) -> Json | None:
        return chat_logprobs(entries, self._bytes_of) if self._logprobs else None


def _choice(index: int, delta: Json, logprobs: Json | None, finish: str | None) -> Json:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}

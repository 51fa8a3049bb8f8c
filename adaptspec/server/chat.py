"""`/v1/chat/completions` on the wire: its body, and the shapes of its answers."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from adaptspec.errors import RequestError
from adaptspec.server.hints import Effort, Hints, Idle
from adaptspec.server.logprobs import Bytes, chat_logprobs
from adaptspec.server.messages import Messages, Text, check_messages
from adaptspec.server.structure import ResponseFormat, grammar_of
from adaptspec.server.tool_text import Arguments, Opened, Part, PlainText, ToolText, Words, reader_of
from adaptspec.server.tools import ToolChoice, Tools, check_tools, tool_grammar
from adaptspec.server.wire import NO_PROVENANCE, PROVENANCE, Alternatives, AtLeastOne, GenerationBody, WireModel
from adaptspec.types import Completion, Delta, FinishReason, Grammar, TokenLogprob

Json = dict[str, Any]


class PredictedText(WireModel):
    """What the answer is expected to be."""

    type: Literal["content"]
    content: Text


_TELLS_LOGPROBS = {"properties": {"logprobs": {"const": True}}, "required": ["logprobs"]}
_NO_TOOLS = {"anyOf": [{"type": "null"}, {"type": "array", "maxItems": 0}]}


class ChatBody(GenerationBody, Hints):
    """A request for the next message of a conversation."""

    messages: Messages
    max_completion_tokens: AtLeastOne | None = None
    logprobs: bool | None = None
    top_logprobs: Alternatives | None = None
    response_format: ResponseFormat | None = None
    prediction: PredictedText | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Annotated[Effort | None, Idle] = None

    no_ops: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "functions": (None, []),
        "function_call": (None, "none"),
        "modalities": (["text"], None),
        "audio": (None,),
        "moderation": (None,),
        "verbosity": (None, "medium"),
        "web_search_options": (None,),
    }
    together: ClassVar[Sequence[Mapping[str, Any]]] = (
        *GenerationBody.together,
        {"anyOf": [_TELLS_LOGPROBS, {"properties": {"top_logprobs": {"type": "null"}}}]},
        {"anyOf": [{"properties": {name: {"type": "null"}}} for name in ("max_tokens", "max_completion_tokens")]},
        {
            "anyOf": [
                {"properties": {"tools": _NO_TOOLS}},
                {"properties": {"tool_choice": {"const": "none"}}, "required": ["tool_choice"]},
                NO_PROVENANCE,
            ]
        },
    )

    prompt_field: ClassVar[str] = "messages"
    operation: ClassVar[str] = "chat"

    @property
    def prompts(self) -> int:
        """All messages together are one."""
        return 1

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

    @property
    def alternatives(self) -> int | None:
        """See `GenerationBody.alternatives`."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def calls(self) -> bool:
        """Whether the answer may call tools."""
        return bool(self.tools) and self.tool_choice != "none"

    @property
    def grammar(self) -> Grammar | None:
        """See `GenerationBody.grammar`."""
        parallel = self.parallel_tool_calls is not False
        return tool_grammar(self.tools or (), self.tool_choice, parallel=parallel) or grammar_of(self.response_format)

    @property
    def constrained(self) -> bool:
        """See `GenerationBody.constrained`."""
        return bool(self.tools) or self._formatted

    def check(self) -> None:
        """What no single field can say. Raises RequestError."""
        super().check()
        check_messages(self.messages)
        check_tools(self.tools or (), self.tool_choice)
        if self.calls and self._formatted:
            raise RequestError(
                "response_format and tools cannot both say what to write; send one of them, or tool_choice none",
                "response_format",
            )
        if self.calls and self.adaptspec is not None and self.adaptspec.provenance:
            raise RequestError("adaptspec.provenance is of text, not of calls; leave it or tools out", PROVENANCE)
        if self.top_logprobs is not None and not self.logprobs:
            raise RequestError("top_logprobs needs logprobs: true; leave it out otherwise", "top_logprobs")
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise RequestError("send max_completion_tokens or max_tokens, not both", "max_tokens")

    @property
    def _formatted(self) -> bool:
        return self.response_format is not None and self.response_format.type != "text"


class ChatDialect:
    """How chat completions are written."""

    id_prefix = "chatcmpl"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, bytes_of: Bytes, *, logprobs: bool = False, calls: bool = False) -> None:
        """`logprobs`: tell those of every token. `calls`: answers may call tools."""
        self._bytes_of = bytes_of
        self._logprobs = logprobs
        self._calls = calls
        self._readers: dict[int, ToolText | PlainText] = {}

    def choice(self, index: int, completion: Completion) -> Json:
        """A whole answer."""
        message: Json = {"role": "assistant", "content": None, "refusal": None}
        reader = reader_of(self._calls)
        message["content"], calls = gathered([*reader.feed(completion.text), *reader.end()])
        if calls:
            message["tool_calls"] = calls
        return {
            "index": index,
            "message": message,
            "logprobs": self._written(completion.logprobs),
            "finish_reason": _finish(completion, reader),
        }

    def chunks(self, index: int, delta: Delta, *, first: bool) -> Iterator[Json]:
        """What one piece of an answer adds; who speaks comes first."""
        if first:
            yield _choice(index, {"role": "assistant", "content": ""}, None, None)
        reader = self._readers.get(index)
        if reader is None:
            reader = self._readers[index] = reader_of(self._calls)
        parts = [*reader.feed(delta.text), *(reader.end() if delta.completion is not None else ())]
        pieces = [_piece(part) for part in parts]
        logprobs = self._written(delta.logprobs) if delta.tokens else None
        if logprobs is not None and not pieces:
            pieces = [{"content": ""}]
        for place, piece in enumerate(pieces):  # the tokens of a round are told once
            yield _choice(index, piece, logprobs if place == 0 else None, None)
        if delta.completion is not None:
            yield _choice(index, {}, None, _finish(delta.completion, reader))

    def _written(self, entries: Sequence[TokenLogprob]) -> Json | None:
        return chat_logprobs(entries, self._bytes_of) if self._logprobs else None


def gathered(parts: Sequence[Part]) -> tuple[str | None, list[Json]]:
    """The content of a message, None where there are only calls, and its tool calls."""
    content = "".join(part.text for part in parts if isinstance(part, Words))
    calls = [_call(part.name) for part in parts if isinstance(part, Opened)]
    for part in parts:
        if isinstance(part, Arguments):
            calls[part.index]["function"]["arguments"] += part.text
    return content if content or not calls else None, calls


def _call(name: str) -> Json:
    return {"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": {"name": name, "arguments": ""}}


def _piece(part: Part) -> Json:
    if isinstance(part, Words):
        return {"content": part.text}
    if isinstance(part, Opened):
        return {"tool_calls": [{"index": part.index, **_call(part.name)}]}
    return {"tool_calls": [{"index": part.index, "function": {"arguments": part.text}}]}


def _finish(completion: Completion, reader: ToolText | PlainText) -> str:
    # A stop string may cut a call short: its arguments are no JSON then, and nobody should call with them.
    called = completion.finish is FinishReason.STOP and reader.calls and reader.whole
    return "tool_calls" if called else completion.finish.value


def _choice(index: int, delta: Json, logprobs: Json | None, finish: str | None) -> Json:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}

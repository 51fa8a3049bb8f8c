"""`/v1/responses`, as an adapter over chats: its body becomes a chat, and the chat's answer a response or its events.

Nothing is stored: every request brings its whole conversation.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

from aiohttp import web
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Discriminator,
    Field,
    GetJsonSchemaHandler,
    Tag,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic_core import CoreSchema

from adaptspec.errors import RequestError
from adaptspec.models.chat.template_traits import new_call_id
from adaptspec.models.sampling import check_vocabulary
from adaptspec.models.tokenization import TokenBytes
from adaptspec.results import Completion, Delta, FinishReason
from adaptspec.server import limits
from adaptspec.server.api.body import read_json, renamed
from adaptspec.server.api.call_reader import CallStart, Part, TextPiece
from adaptspec.server.api.chat import ChatRequest, Conversation, conversation, prompt_of
from adaptspec.server.api.chat_prompt import TemplateValues
from adaptspec.server.api.constraints.response_format import JsonObjectFormat, NamedSchema, TextFormat, flat_spelling
from adaptspec.server.api.fields import (
    NO_EFFECT,
    AtMost,
    Count,
    Ignored,
    Json,
    LenientModel,
    Name,
    Only,
    RequestBody,
    WireModel,
    warnings_of,
)
from adaptspec.server.api.messages import IDLE_KEYS, FunctionName, Message, TextIfAny
from adaptspec.server.api.neutral_fields import NeutralFields
from adaptspec.server.api.outputs import Answer, Metrics, metrics, new_id
from adaptspec.server.api.reasoning import ReasoningPiece
from adaptspec.server.api.sampling import (
    PROVENANCE,
    UNLIMITED,
    Alternatives,
    CacheSalt,
    Effort,
    IgnoredFields,
    OutputTokens,
    SamplingFields,
    SpeculationFields,
    Verbosity,
)
from adaptspec.server.api.tool_choice import AllowedTools, NamedTool, ToolChoice
from adaptspec.server.api.tools import Function, OrOtherTools, usable_tools
from adaptspec.server.generation import GENERATION, key_name
from adaptspec.server.routes import Operation
from adaptspec.server.threads import THREADS

# Names of fields in a chat, and in a response.
_RENAMED: Mapping[str, str] = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
}
# As in a chat.
_SAME = (
    *("model", "stream", "parallel_tool_calls", "top_logprobs", "chat_template_kwargs", "cache_salt"),
    *SamplingFields.model_fields,
)
_BYTES_PER_ITEM = 256  # of JSON that take as long to read as an item takes to become a message


# Items of a history that only OpenAI's own servers can use: calls of their tools, and encrypted reasoning.
_OTHER_ITEMS = frozenset(
    {"additional_tools", "apply_patch_call", "apply_patch_call_output", "code_interpreter_call", "compaction_trigger"}
    | {"computer_call", "computer_call_output", "configuration_update", "custom_tool_call", "custom_tool_call_output"}
    | {"file_search_call", "image_generation_call", "local_shell_call", "local_shell_call_output"}
    | {"mcp_approval_request", "mcp_approval_response", "mcp_call", "mcp_list_tools", "program", "program_output"}
    | {"reasoning", "shell_call", "shell_call_output", "tool_search_call", "tool_search_output", "web_search_call"}
)
_NOT_STORED = "this server keeps no responses, so send the whole conversation as input"


class _Item(LenientModel):
    where: ClassVar[str] = "input[]"
    # `name` and `namespace` stand next to the id of the call, which says the same.
    idle: ClassVar[frozenset[str]] = IDLE_KEYS | {
        *("agent", "async", "async_", "caller", "created_by", "name", "namespace", "phase")
    }


class InputMessage(_Item):
    """A message, the client's or one of ours that comes back."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: TextIfAny = None


class FunctionCall(_Item):
    """A call that an earlier answer made."""

    type: Literal["function_call"]
    call_id: Name
    name: FunctionName
    arguments: str = ""


class FunctionCallOutput(_Item):
    """What came of a call."""

    type: Literal["function_call_output"]
    call_id: Name
    output: TextIfAny = None


class ReasoningItem(_Item):
    """What a model thought before the answer or the call that follows. `summary` is read where `content` has no text.

    Items without any text, such as encrypted ones, are dropped.
    """

    type: Literal["reasoning"]
    content: Any = None
    summary: Any = None

    idle: ClassVar[frozenset[str]] = _Item.idle | {"encrypted_content"}

    @property
    def text(self) -> str:
        return _thoughts(self.content) or _thoughts(self.summary)


def _thoughts(parts: object) -> str:
    """The text in parts of a reasoning item."""
    listed = parts if isinstance(parts, list) else ()
    texts = [part.get("text") for part in listed if isinstance(part, dict)]
    return "\n".join(text for text in texts if isinstance(text, str) and text)


def _kind(item: object) -> str | None:
    """What an item is: clients leave out that a message is one."""
    kind = item.get("type") if isinstance(item, dict) else getattr(item, "type", None)
    if kind is None and isinstance(item, dict):
        return "message"
    return kind if isinstance(kind, str) else None


def _unless_other(item: object, read: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
    """The item; None, and a warning that names its type, for one that this server cannot use."""
    if not _is_other(item):
        return read(item)
    kind = _kind(item)
    name = f"{kind} without text" if kind == "reasoning" else kind
    warnings_of(info).add("item", f"input[] of the type {name} cannot be used here and were dropped")
    return None


def _usable(items: list[Any]) -> list[Any]:
    """The items that can be used. Errors name items by their index among all."""
    for index, item in enumerate(items):
        if isinstance(item, InputMessage) and item.role != "assistant" and item.content is None:
            path = f"input[{index}].content"
            raise RequestError(f"{path} is missing; add the text of the message", path)
    kept = [item for item in items if item is not None]
    if not kept:
        raise RequestError("input has no item that this server can use; send a message", "input")
    return kept


def _is_other(item: object) -> bool:
    if isinstance(item, dict) and item.get("type") == "reasoning":
        return not (_thoughts(item.get("content")) or _thoughts(item.get("summary")))
    return _kind(item) in _OTHER_ITEMS


class _OrOtherItems:
    """Says in the schema of `input` that its list may have other items."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        written = handler(schema)
        other = {"type": "object", "properties": {"type": {"enum": sorted(_OTHER_ITEMS)}}, "required": ["type"]}
        written["items"] = {"anyOf": [written["items"], other]}
        return written


Item = Annotated[
    Annotated[InputMessage, Tag("message")]
    | Annotated[FunctionCall, Tag("function_call")]
    | Annotated[FunctionCallOutput, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")],
    Discriminator(_kind),
]
Items = Annotated[
    list[Annotated[Item, WrapValidator(_unless_other)]],
    Field(min_length=1, fail_fast=True),
    AfterValidator(_usable),
    _OrOtherItems(),
    AtMost(limits.MESSAGES),
]


class FunctionTool(Function):
    """A function that may be called."""

    type: Literal["function"]

    def chat(self) -> dict[str, Any]:
        return {"type": "function", "function": self.model_dump(exclude={"type"})}


FunctionTools = Annotated[
    list[FunctionTool],
    Field(fail_fast=True),
    BeforeValidator(partial(usable_tools, flat=True)),
    OrOtherTools(),
    AtMost(limits.TOOLS),
]


class SchemaFormat(NamedSchema):
    """JSON that fits a schema."""

    type: Literal["json_schema"]

    def chat(self) -> dict[str, Any]:
        return {"type": "json_schema", "json_schema": self.model_dump(exclude={"type"}, by_alias=True)}


class TextOptions(WireModel):
    """What the text is to be like."""

    format: (
        Annotated[
            TextFormat | JsonObjectFormat | SchemaFormat,
            Field(discriminator="type"),
            BeforeValidator(flat_spelling),
        ]
        | None
    ) = None
    verbosity: Verbosity = None


_LOGPROBS = "message.output_text.logprobs"
# Values of "include". Only the log-probabilities have an effect; the others belong to OpenAI's hosted tools.
Includable = Literal[
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
]


class ReasoningOptions(WireModel):
    """How a reasoning model is to think; `effort` is as in chats, the others have no effect."""

    effort: Effort | None = None
    context: Ignored[Literal["auto", "current_turn", "all_turns"]] = None
    mode: Ignored[Literal["standard"]] = None
    summary: Ignored[Literal["auto", "concise", "detailed"]] = None
    generate_summary: Ignored[Literal["auto", "concise", "detailed"]] = None


class ResponseStreamOptions(WireModel):
    """Options of a streamed response."""

    include_obfuscation: Ignored[bool] = None


class ResponseChat(ChatRequest):
    """The chat that a response asks for."""

    messages: list[Message]  # at most two of an item, whose number is bounded

    prompt_field: ClassVar[str] = "input"
    tool_path: ClassVar[str] = "tools[{index}].parameters"
    schema_path: ClassVar[str] = "text.format.schema"


class ResponsesRequest(SamplingFields, NeutralFields, IgnoredFields, RequestBody):
    """A request for a response. Nothing is stored, also where `store` says so: the answer's `store` is false."""

    model: Name | None = None
    input: str | Items
    instructions: str | None = None
    max_output_tokens: OutputTokens | None = None
    stream: bool | None = None
    text: TextOptions | None = None
    tools: FunctionTools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: Annotated[Count | None, Field(description=f"{NO_EFFECT} It counts tools run by a server.")] = None
    top_logprobs: Alternatives | None = None
    truncation: Annotated[
        Literal["auto", "disabled"] | None, Field(description="A conversation that does not fit is always refused.")
    ] = None
    user: Ignored[str] = None
    client_metadata: Ignored[Any] = None
    reasoning: ReasoningOptions | None = None
    stream_options: Ignored[ResponseStreamOptions] = None
    include: list[Includable] | None = None
    chat_template_kwargs: TemplateValues | None = None
    cache_salt: CacheSalt | None = None
    adaptspec: SpeculationFields | None = None

    access_programs: Annotated[Any, Only()] = None
    background: Annotated[
        Any,
        Only(
            False,
            remedy="no request runs in the background here, so leave it out, and wait for the answer or stream it",
        ),
    ] = None
    background_options: Annotated[Any, Only()] = None
    context_management: Annotated[Any, Only([], remedy="nothing shortens a conversation here, so leave it out")] = None
    conversation: Annotated[Any, Only(remedy=_NOT_STORED)] = None
    image: Annotated[Any, Only(remedy="it writes text only, so leave it out")] = None
    moderation: Annotated[Any, Only(remedy="it moderates nothing, so leave it out")] = None
    n: Annotated[Any, Only(1)] = None
    previous_response_id: Annotated[Any, Only(remedy=_NOT_STORED)] = None
    prompt: Annotated[Any, Only(remedy="this server keeps no prompts, so send the text as instructions and input")] = (
        None
    )

    other_names: ClassVar[Mapping[str, str]] = {
        **_RENAMED,
        "extra_key": "cache_salt",
        "logprobs": "include",
        "max_tokens": "max_output_tokens",
        "reasoning_effort": "reasoning.effort",
        "system": "instructions",
        "verbosity": "text.verbosity",
    }

    @property
    def logprobs(self) -> bool:
        """Whether the answer is to have log-probabilities."""
        return _LOGPROBS in (self.include or ())

    @model_validator(mode="after")
    def _check_response(self) -> ResponsesRequest:
        if self.adaptspec is not None and self.adaptspec.provenance:
            raise RequestError("responses have no adaptspec.provenance; stream /v1/chat/completions for it", PROVENANCE)
        if self.top_logprobs and not self.logprobs:
            raise RequestError(f'top_logprobs needs include: ["{_LOGPROBS}"]; leave it out otherwise', "top_logprobs")
        return self


def to_chat(body: ResponsesRequest) -> ChatRequest:
    """The chat that a response asks for. Raises RequestError, which names fields of a chat."""
    asked = None if body.text is None else body.text.format
    document = {name: getattr(body, name) for name in _SAME} | {
        "messages": _messages(body),
        "max_completion_tokens": body.max_output_tokens,
        "logprobs": body.logprobs,
        "reasoning_effort": None if body.reasoning is None else body.reasoning.effort,
        "response_format": asked.chat() if isinstance(asked, SchemaFormat) else asked,
        "tools": None if body.tools is None else [tool.chat() for tool in body.tools],
        "tool_choice": body.tool_choice,
        "adaptspec": body.adaptspec,
    }
    try:
        return ResponseChat.model_validate(document, context=body.warnings)
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        raise RequestError(f"input cannot be read as a conversation: {reason}", "input") from error


def _messages(body: ResponsesRequest) -> list[Json]:
    items = [InputMessage(role="user", content=body.input)] if isinstance(body.input, str) else body.input
    messages = _conversation(items)
    if body.instructions is not None:
        messages.insert(0, {"role": "system", "content": body.instructions})
    return messages


def _choice(choice: str | NamedTool | AllowedTools | None) -> str | Json:
    """`tool_choice` as responses spell it."""
    if isinstance(choice, NamedTool):
        return _flat(choice)
    if isinstance(choice, AllowedTools):
        allowed = choice.allowed_tools
        return {"type": choice.type, "mode": allowed.mode, "tools": [_flat(tool) for tool in allowed.tools]}
    return choice or "auto"


def _flat(tool: NamedTool) -> dict[str, Any]:
    return {"type": tool.type, "name": tool.function.name}


def _conversation(items: Sequence[InputMessage | FunctionCall | FunctionCallOutput | ReasoningItem]) -> list[Json]:
    """Items as messages: calls belong to the assistant's message before them, and reasoning to the one after it.

    A reasoning that no answer or call follows, as that was cut off, is an assistant's message without text.
    """
    messages: list[Json] = []
    thoughts: list[str] = []
    for item in items:
        if isinstance(item, ReasoningItem):
            thoughts.append(item.text)
            continue
        if isinstance(item, FunctionCall):
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": None})
            function = {"name": item.name, "arguments": item.arguments}
            call = {"id": item.call_id, "type": "function", "function": function}
            calls = messages[-1].setdefault("tool_calls", [])
            calls.append(call)
            if len(calls) > limits.TOOLS:
                raise RequestError(
                    f"input has more than {limits.TOOLS} items of the type function_call in one turn; send fewer",
                    "input",
                )
        elif isinstance(item, InputMessage) and item.role == "assistant":
            messages.append({"role": item.role, "content": item.content})
        elif thoughts:
            messages.append({"role": "assistant", "content": None})
        _add_thoughts(messages, thoughts)
        if isinstance(item, InputMessage) and item.role != "assistant":
            messages.append({"role": item.role, "content": item.content})
        elif isinstance(item, FunctionCallOutput):
            messages.append({"role": "tool", "content": item.output, "tool_call_id": item.call_id})
    if thoughts:
        messages.append({"role": "assistant", "content": None})
        _add_thoughts(messages, thoughts)
    return messages


def _add_thoughts(messages: list[Json], thoughts: list[str]) -> None:
    """Move thoughts into the last message."""
    if thoughts:
        known = messages[-1].get("reasoning_content")
        messages[-1]["reasoning_content"] = "\n".join([*([known] if known else []), *thoughts])
        thoughts.clear()


class Response(BaseModel):
    """A response; what it repeats of its request is not spelled out here."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["completed", "incomplete"]
    model: str
    output: list[dict[str, Any]]
    usage: dict[str, Any]
    metrics: Metrics
    warnings: list[str] | None = None


class InputTokens(Answer):
    """How many tokens the prompt of a response has."""

    object: Literal["response.input_tokens"]
    input_tokens: int
    warnings: list[str] | None = None


class ResponsesWriter:
    """Answers with one response."""

    names_events = True

    def __init__(
        self, identity: str, model: str, body: ResponsesRequest, chat: Conversation, bytes_of: TokenBytes
    ) -> None:
        self.id = identity
        self._created = int(time.time())
        self._model = model
        self._asked = body.model_dump(by_alias=True, exclude={"input", *NeutralFields.model_fields})
        self._choice = _choice(body.tool_choice)
        self._warnings = body.warnings
        self._reader = chat.reader(bytes_of, logprobs=body.logprobs)
        self._items = OutputItems()
        self._count = 0  # events so far

    def whole(self, completions: Sequence[Completion]) -> Json:
        """The response in one object: that of the last event."""
        (completion,) = completions
        *_, last = self._parts(completion, completion)
        response: Json = last["response"]
        return response

    def pieces(self, index: int, delta: Delta, *, first: bool) -> Iterator[Json]:  # noqa: ARG002 (there is one)
        if first:
            for kind in ("created", "in_progress"):
                yield self._numbered({"type": f"response.{kind}", "response": self._object("in_progress")})
        for event in self._parts(delta, delta.completion):
            yield self._numbered(event)

    def end(self) -> Iterable[Json]:
        return ()

    def _numbered(self, event: Json) -> Json:
        self._count += 1
        return {**event, "sequence_number": self._count - 1}

    def _parts(self, new: Delta | Completion, completion: Completion | None) -> Iterator[Json]:
        """The events of the next text, and of the end where there is a completion."""
        parts = self._reader.read(new.text, new.tokens, new.logprobs, final=completion is not None)
        if self._reader.logprobs is not None:
            self._items.logprobs += self._reader.logprobs.written()["content"]
        for part in parts:
            yield from self._items.take(part)
        if completion is not None:
            yield from self._items.end(_status(completion))
            response = self._ended(completion)
            yield {"type": f"response.{response['status']}", "response": response}

    def _ended(self, completion: Completion) -> Json:
        response = self._object(_status(completion))
        if completion.finish is FinishReason.LENGTH:
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        output = len(completion.tokens)
        response["usage"] = {
            "input_tokens": completion.prompt_tokens,
            "input_tokens_details": {"cached_tokens": completion.cached_tokens},
            "output_tokens": output,
            "output_tokens_details": {"reasoning_tokens": self._reader.reasoning_tokens},
            "total_tokens": completion.prompt_tokens + output,
        }
        return response | {"metrics": metrics([completion]).written()} | self._warnings.written()

    def _object(self, status: str) -> Json:
        asked = self._asked
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": asked["instructions"],
            "max_output_tokens": None if asked["max_output_tokens"] == UNLIMITED else asked["max_output_tokens"],
            "model": self._model,
            "output": list(self._items.all),
            "parallel_tool_calls": asked["parallel_tool_calls"] is not False,
            "previous_response_id": None,
            "reasoning": {"effort": (asked["reasoning"] or {}).get("effort"), "summary": None},
            "store": False,
            "temperature": 1.0 if asked["temperature"] is None else asked["temperature"],
            "text": {"format": (asked["text"] or {}).get("format") or {"type": "text"}},
            "tool_choice": self._choice,
            "tools": asked["tools"] or [],
            "top_p": 1.0 if asked["top_p"] is None else asked["top_p"],
            "top_logprobs": asked["top_logprobs"] or 0,
            "truncation": asked["truncation"] or "disabled",
            "usage": None,
            "user": asked["user"],
            "metadata": asked["metadata"] or {},
        }


class OutputItems:
    """The output of a response, item by item; each step gives its events.

    `logprobs` are of tokens whose text no event has had: the next piece of text takes them, or the next call, which has
    none.
    """

    def __init__(self) -> None:
        self.all: list[Json] = []  # as a response holds them
        self.logprobs: list[Json] = []
        self._open = False

    def take(self, part: Part | ReasoningPiece) -> Iterator[Json]:
        if isinstance(part, ReasoningPiece):
            if not self._open or self.all[-1]["type"] != "reasoning":
                yield from self._open_reasoning()
            self.all[-1]["content"][0]["text"] += part.text
            yield self._event("response.reasoning_text.delta", content_index=0, delta=part.text)
        elif isinstance(part, TextPiece):
            if not self._open or self.all[-1]["type"] != "message":
                yield from self._open_message()
            content, logprobs = self.all[-1]["content"][0], self.logprobs
            content["text"] += part.text
            content["logprobs"] += logprobs
            self.logprobs = []
            yield self._event("response.output_text.delta", content_index=0, delta=part.text, logprobs=logprobs)
        elif isinstance(part, CallStart):
            self.logprobs = []
            call = {"type": "function_call", "call_id": new_call_id(), "name": part.name, "arguments": ""}
            yield from self._open_item(call, "fc")
        else:
            self.all[-1]["arguments"] += part.text
            yield self._event("response.function_call_arguments.delta", delta=part.text)

    def close(self, status: str = "completed") -> Iterator[Json]:
        """The open item ends; `status` says how."""
        if not self._open:
            return
        self._open = False
        item = self.all[-1]
        item["status"] = status
        if item["type"] == "message":
            part = item["content"][0]
            text, logprobs = part["text"], part["logprobs"]
            yield self._event("response.output_text.done", content_index=0, text=text, logprobs=logprobs)
            yield self._event("response.content_part.done", content_index=0, part=dict(part))
        elif item["type"] == "reasoning":
            part = item["content"][0]
            yield self._event("response.reasoning_text.done", content_index=0, text=part["text"])
            yield self._event("response.content_part.done", content_index=0, part=dict(part))
        else:
            name, arguments = item["name"], item["arguments"]
            yield self._event("response.function_call_arguments.done", name=name, arguments=arguments)
        yield self._item_event("response.output_item.done")

    def end(self, status: str) -> Iterator[Json]:
        """The answer ends; one that says nothing is an empty message."""
        if not self.all:
            yield from self._open_message()
        yield from self.close(status)

    def _open_message(self) -> Iterator[Json]:
        yield from self._open_item({"type": "message", "role": "assistant", "content": []}, "msg")
        part: Json = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        self.all[-1]["content"].append(part)
        yield self._event("response.content_part.added", content_index=0, part=deepcopy(part))

    def _open_reasoning(self) -> Iterator[Json]:
        yield from self._open_item({"type": "reasoning", "summary": [], "content": []}, "rs")
        part: Json = {"type": "reasoning_text", "text": ""}
        self.all[-1]["content"].append(part)
        yield self._event("response.content_part.added", content_index=0, part=dict(part))

    def _open_item(self, item: Json, prefix: str) -> Iterator[Json]:
        yield from self.close()
        self.all.append({"id": _item_id(prefix), "status": "in_progress", **item})
        self._open = True
        yield self._item_event("response.output_item.added")

    def _item_event(self, kind: str) -> Json:
        return {"type": kind, "output_index": len(self.all) - 1, "item": deepcopy(self.all[-1])}

    def _event(self, kind: str, **more: Any) -> Json:
        return {"type": kind, "item_id": self.all[-1]["id"], "output_index": len(self.all) - 1, **more}


def _status(completion: Completion) -> str:
    return "completed" if completion.finish is FinishReason.STOP else "incomplete"


def _item_id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex[:24]}"


@Operation("post", "/v1/responses", ResponsesRequest, Response, streams=True, refused=(429,))
async def responses(http: web.Request) -> web.StreamResponse:
    """Make a response."""
    generation = http.app[GENERATION]
    with generation.admitted():
        body = await read_json(http, ResponsesRequest)
        identity = new_id("resp_")
        try:
            chat = await conversation(generation, identity, await _chat_of(http, body), key_name(http))
        except RequestError as error:
            raise renamed(error, _RENAMED) from error
    writer = ResponsesWriter(identity, generation.engine.target.name, body, chat, generation.prompts.bytes_of)
    return await generation.respond(http, chat.body, chat.requests, writer)


@Operation("post", "/v1/responses/input_tokens", ResponsesRequest, InputTokens)
async def input_tokens(http: web.Request) -> web.Response:
    """Count the tokens of a response's prompt, with its tools, without making the response."""
    generation = http.app[GENERATION]
    body = await read_json(http, ResponsesRequest)
    generation.names.check(body.model)
    try:
        chat = await _chat_of(http, body)
        check_vocabulary(chat.to_sampling(1), generation.engine.target.vocab_size)
        tokens = await prompt_of(generation, chat, chat.messages)
    except RequestError as error:
        raise renamed(error, _RENAMED) from error
    generation.warning_log.report(body.warnings)
    answer = InputTokens(object="response.input_tokens", input_tokens=len(tokens))
    return web.json_response(answer.written() | body.warnings.written())


async def _chat_of(http: web.Request, body: ResponsesRequest) -> ChatRequest:
    """The chat that a response asks for, made off the event loop where it is long."""
    items = 0 if isinstance(body.input, str) else len(body.input)
    size = _BYTES_PER_ITEM * (items + len(body.tools or ()))
    return await http.app[THREADS].run(size, lambda: to_chat(body))


ROUTES = (responses, input_tokens)

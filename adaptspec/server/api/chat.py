"""`/v1/chat/completions`: its body, its answers, whole and in chunks, and its handler."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from aiohttp import web
from pydantic import model_validator

from adaptspec.errors import RequestError
from adaptspec.models.grammars import JSON_STYLE
from adaptspec.models.tokenization import TokenBytes
from adaptspec.request import Grammar, Reasoning, Request
from adaptspec.results import Completion, Delta, FinishReason
from adaptspec.server.api.body import read_json
from adaptspec.server.api.call_reader import CallReader, CallStart, Part, TextPiece
from adaptspec.server.api.chat_prompt import ChatPromptFields
from adaptspec.server.api.constraints.response_format import schema_of
from adaptspec.server.api.constraints.structured_outputs import ConstraintFields
from adaptspec.server.api.fields import Json, Only, WireModel
from adaptspec.server.api.message_reader import (
    Call,
    ChatLogprobs,
    MessageReader,
    chat_logprobs,
    gathered,
    new_call,
)
from adaptspec.server.api.messages import Messages, Text
from adaptspec.server.api.outputs import Answer, ChunkWriter, Finish, Metrics, Usage, new_id, pieces_by_drafter
from adaptspec.server.api.reasoning import TAIL, ReasoningPiece, begun, continued
from adaptspec.server.api.sampling import (
    PROVENANCE,
    UNLIMITED,
    Alternatives,
    GenerationRequest,
    IgnoredFields,
    OutputTokens,
    Verbosity,
)
from adaptspec.server.api.schemas.schema_words import EXTENSION
from adaptspec.server.api.tool_choice import chosen_names, mode_of
from adaptspec.server.api.tool_forms import HERMES, IN_WORDS, ToolForm
from adaptspec.server.api.tools import TOOL_PATH, tool_grammar
from adaptspec.server.generation import GENERATION, Generation, key_name, with_unique_ids
from adaptspec.server.routes import Operation


class PredictedText(WireModel):
    """What the answer is expected to be."""

    type: Literal["content"]
    content: Text


class ChatRequest(GenerationRequest, ChatPromptFields, ConstraintFields, IgnoredFields):
    """A request for the next message of a conversation."""

    messages: Messages
    max_completion_tokens: OutputTokens | None = None
    logprobs: bool | None = None
    top_logprobs: Alternatives | None = None
    prediction: PredictedText | None = None
    parallel_tool_calls: bool | None = None
    verbosity: Verbosity = None

    add_special_tokens: Annotated[Any, Only(False)] = None  # a chat template writes them
    audio: Annotated[Any, Only(remedy="it writes text only, so leave it out")] = None
    echo: Annotated[Any, Only(False)] = None
    function_call: Annotated[Any, Only("none", "auto", remedy="send tool_choice instead")] = None
    functions: Annotated[Any, Only([], remedy="send them as tools instead")] = None
    modalities: Annotated[Any, Only(["text"])] = None
    moderation: Annotated[Any, Only(remedy="it moderates nothing, so leave it out")] = None
    web_search_options: Annotated[Any, Only(remedy="it cannot search, so leave it out, or send a tool that does")] = (
        None
    )

    other_names: ClassVar[Mapping[str, str]] = {
        **GenerationRequest.other_names,
        "input": "messages",
        "instructions": "messages",
        "max_output_tokens": "max_completion_tokens",
        "prompt": "messages",
        "reasoning": "reasoning_effort",
        "system": "messages",
        "text": "response_format",
    }

    prompt_field: ClassVar[str] = "messages"
    operation: ClassVar[str] = "chat"
    tool_path: ClassVar[str] = TOOL_PATH  # of schemas, for messages

    @property
    def contents(self) -> list[dict[str, str]]:
        return [message.plain() for message in self.messages]

    @property
    def asked_tokens(self) -> tuple[str, int] | None:
        if self.max_completion_tokens in (None, UNLIMITED):
            return super().asked_tokens
        return "max_completion_tokens", self.max_completion_tokens

    @property
    def alternatives(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def may_call(self) -> bool:
        return bool(self.tools) and self.tool_choice != "none"

    @property
    def constrained_by(self) -> str | None:
        if self.asked is not None:
            return self.asked.param
        if self.tools:
            return "tools"
        return self.schema_path.removesuffix(".schema").removesuffix(".json_schema") if self.wants_json else None

    def grammar(self, form: ToolForm = HERMES) -> Grammar | None:
        """What the answer must be; None where any text will do. `form` is how calls are written.

        Where a call may be made, but need not be, an answer is calls or what `response_format` asks for; a call that
        must be made leaves the format to a later turn. Words of schemas that are left out are added to `warnings`.

        Raises RequestError for a schema that is not valid, too much, or strict and cannot be kept to.
        """
        if not self.may_call:
            return self.constraint()
        answer = None
        if mode_of(self.tool_choice) == "auto":
            answer = schema_of(self.response_format, self.warnings, self.schema_path)
        return tool_grammar(
            self.tools or (),
            self.tool_choice,
            parallel=self.parallel_tool_calls is not False,
            form=form,
            answer=None if answer is None else answer | {EXTENSION: JSON_STYLE},
            warnings=self.warnings,
            path=self.tool_path,
        )

    def call_reader(self, form: ToolForm = HERMES) -> CallReader:
        """Reads the calls of one answer, which are written in `form`."""
        names, wanted = self.tool_names, chosen_names(self.tool_choice)
        callable_names = names if wanted is None else [name for name in names if name in wanted]
        return CallReader(self.may_call, form, callable_names)

    @model_validator(mode="after")
    def _check_chat(self) -> ChatRequest:
        if self.asked is not None and self.may_call:
            raise RequestError(
                f"{self.asked.param} and tools cannot both say what to write; send one of them", self.asked.param
            )
        if self.may_call and self.wants_provenance:
            raise RequestError("adaptspec.provenance is of text, not of calls; leave it or tools out", PROVENANCE)
        if self.top_logprobs and not self.logprobs:
            raise RequestError("top_logprobs needs logprobs: true; leave it out otherwise", "top_logprobs")
        if self.max_tokens is not None and self.max_completion_tokens not in (None, UNLIMITED):
            raise RequestError("send max_completion_tokens or max_tokens, not both", "max_tokens")
        return self


class AssistantMessage(Answer):
    """What the assistant says, or calls."""

    role: Literal["assistant"]
    content: str | None
    reasoning_content: str | None = None
    refusal: None
    tool_calls: list[Call] | None = None


class ChatChoice(Answer):
    """One answer."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: Finish


class ChatCompletion(Answer):
    """The next message of a conversation."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    metrics: Metrics
    warnings: list[str] | None = None


@dataclass(frozen=True)
class Conversation:
    """A chat as the engine gets it: a request for each choice, and what reading its answers needs.

    `form` is how calls are written. `reasoning`: what answers may begin with or go on in; None where they have none.
    """

    body: ChatRequest
    requests: list[Request]
    form: ToolForm
    reasoning: Reasoning | None

    def reader(self, bytes_of: TokenBytes, *, logprobs: bool) -> MessageReader:
        """Reads one of its answers."""
        return MessageReader(self.body.call_reader(self.form), self.reasoning, bytes_of, logprobs=logprobs)


class ChatWriter(ChunkWriter):
    """Answers a chat."""

    whole_model = ChatCompletion
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, identity: str, model: str, chat: Conversation, bytes_of: TokenBytes) -> None:
        super().__init__(identity, model, chat.body, chat.requests)
        self.reasoning_tokens = None if chat.reasoning is None else 0
        self._chat = chat
        self._bytes_of = bytes_of
        self._logprobs = bool(chat.body.logprobs)
        self._readers: dict[int, MessageReader] = {}
        self._with_logprobs: set[int] = set()  # choices of which a chunk had some

    def chunks(self, index: int, delta: Delta, *, first: bool) -> Iterator[Json]:
        if first:
            yield _chunk(index, {"role": "assistant", "content": ""})
        reader = self._readers.get(index) or self._readers.setdefault(index, self._new_reader())
        reader.add_pieces(delta.pieces or ())
        parts = self._read(reader, delta, delta.completion)
        contents = [_content(part) for part in parts]
        logprobs = reader.logprobs
        if logprobs is not None and not logprobs.content:
            logprobs = None
        if logprobs is not None and all("reasoning_content" in content for content in contents):
            contents.append({"content": ""})
        for content in contents:  # the tokens of a round come once, with what is no reasoning
            if logprobs is None or "reasoning_content" in content:
                yield _chunk(index, content)
                continue
            yield _chunk(index, content, logprobs.written())
            self._with_logprobs.add(index)
            logprobs = None
        if delta.completion is not None:
            # As in a whole answer, none of whose tokens may be of its content.
            is_bare = self._logprobs and index not in self._with_logprobs
            empty = chat_logprobs([], self._bytes_of).written() if is_bare else None
            yield _chunk(index, {}, empty, _finish(delta.completion, reader.calls))

    def provenance(self, delta: Delta, choice: Json) -> Json:
        words = choice["delta"].get("reasoning_content") or choice["delta"].get("content")
        if delta.pieces is None or not words:
            return {}
        return pieces_by_drafter(self._readers[choice["index"]].next_pieces())

    def choice(self, index: int, completion: Completion) -> ChatChoice:
        reader = self._new_reader()
        parts = self._read(reader, completion, completion)
        thoughts = "".join(part.text for part in parts if isinstance(part, ReasoningPiece))
        content, calls = gathered([part for part in parts if not isinstance(part, ReasoningPiece)])
        message = AssistantMessage(role="assistant", content=content, refusal=None)
        if thoughts:
            message.reasoning_content = thoughts
        if reader.is_unfinished and not content:
            message.content = None
        if calls:
            message.tool_calls = calls
        return ChatChoice(
            index=index, message=message, logprobs=reader.logprobs, finish_reason=_finish(completion, reader.calls)
        )

    def _new_reader(self) -> MessageReader:
        return self._chat.reader(self._bytes_of, logprobs=self._logprobs)

    def _read(
        self, reader: MessageReader, new: Delta | Completion, completion: Completion | None
    ) -> list[Part | ReasoningPiece]:
        before = reader.reasoning_tokens
        parts = reader.read(new.text, new.tokens, new.logprobs, final=completion is not None)
        if self.reasoning_tokens is not None:
            self.reasoning_tokens += reader.reasoning_tokens - before
        return parts


def _content(part: Part | ReasoningPiece) -> Json:
    if isinstance(part, ReasoningPiece):
        return {"reasoning_content": part.text}
    if isinstance(part, TextPiece):
        return {"content": part.text}
    if isinstance(part, CallStart):
        return {"tool_calls": [{"index": part.index, **new_call(part.name).written()}]}
    return {"tool_calls": [{"index": part.index, "function": {"arguments": part.text}}]}


def _finish(completion: Completion, reader: CallReader) -> Finish:
    # A stop string may cut a call short: its arguments are no JSON then, and no client should call with them.
    if completion.finish is FinishReason.STOP:
        return "tool_calls" if reader.calls and reader.whole else "stop"
    return "length"


def _chunk(index: int, delta: Json, logprobs: Json | None = None, finish: Finish | None = None) -> Json:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}


def tool_form(generation: Generation, body: ChatPromptFields) -> ToolForm:
    """The form of calls in the prompt and the answer. Only for a request with tools is the template probed."""
    return body.call_form(generation.prompts.tool_form) if body.tools else IN_WORDS


async def prompt_of(generation: Generation, body: ChatPromptFields, messages: Messages) -> tuple[int, ...]:
    """Token ids of a conversation. Raises RequestError."""
    form = tool_form(generation, body)
    return await generation.prompts.chat(messages, body.tools or (), body.render_options, form, warnings=body.warnings)


async def conversation(
    generation: Generation, identity: str, body: ChatRequest, key: str | None = None
) -> Conversation:
    """The engine requests of a chat. Raises RequestError if the engine can never serve them."""
    generation.check(body)
    form = tool_form(generation, body)
    prompt = await prompt_of(generation, body, body.messages)
    reasoning = await _reasoning(generation, body, prompt)
    grammar = await generation.compile(body, lambda: body.grammar(form), reasoning)
    prediction: tuple[int, ...] = ()
    if body.prediction is not None:
        text = body.prediction.content
        tokens = await generation.prompts.encode(text, add_special_tokens=False, param="prediction")
        prediction = tokens[: generation.engine.target.context]
    requests = generation.requests(identity, body, prompt, grammar=grammar, prediction=prediction, key=key)
    return Conversation(body, with_unique_ids(requests), form, reasoning)


async def _reasoning(generation: Generation, body: ChatRequest, prompt: Sequence[int]) -> Reasoning | None:
    marks = generation.reasoning
    if marks is None:
        return None
    if body.continue_final_message:
        last = body.messages[-1].plain()
        return continued(marks, last["role"], str(last["content"]))
    return begun(marks, await generation.prompts.decode(prompt[-TAIL:]))


@Operation("post", "/v1/chat/completions", ChatRequest, ChatCompletion, streams=True, refused=(429,))
async def chat_completions(http: web.Request) -> web.StreamResponse:
    """Answer a conversation."""
    generation = http.app[GENERATION]
    with generation.admitted():
        body = await read_json(http, ChatRequest)
        identity = new_id("chatcmpl-")
        chat = await conversation(generation, identity, body, key_name(http))
    writer = ChatWriter(identity, generation.engine.target.name, chat, generation.prompts.bytes_of)
    return await generation.respond(http, body, chat.requests, writer)


ROUTES = (chat_completions,)

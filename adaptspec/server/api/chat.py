"""`/v1/chat/completions` on the wire: its body, and its answers, whole and in pieces."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Literal

from pydantic import model_validator

from adaptspec.errors import RequestError
from adaptspec.models.chat.template_traits import new_call_id
from adaptspec.models.grammars import JSON_STYLE
from adaptspec.request import Grammar, Reasoning
from adaptspec.results import Completion, Delta, FinishReason, Piece, TokenLogprob
from adaptspec.server.api.answers import Answer, Bytes, Finish, Json, Metrics, Reply, Usage, shown_pieces
from adaptspec.server.api.call_reader import CallReader, CallStart, Part, TextPiece
from adaptspec.server.api.constraints.response_format import schema_of
from adaptspec.server.api.constraints.structured_outputs import ConstraintFields
from adaptspec.server.api.content_logprobs import ContentLogprobs, ShownToken
from adaptspec.server.api.generation_body import (
    NO_PROVENANCE,
    PROVENANCE,
    Alternatives,
    GenerationBody,
    Hints,
    MostTokens,
    Verbosity,
)
from adaptspec.server.api.messages import Messages, Text
from adaptspec.server.api.prompt_fields import PromptFields
from adaptspec.server.api.reasoning import (
    PieceQueue,
    ReasoningPiece,
    ReasoningReader,
    ReasoningTokens,
    Span,
)
from adaptspec.server.api.schemas.schema_words import EXTENSION
from adaptspec.server.api.tool_choice import chosen_names, mode_of
from adaptspec.server.api.tool_forms import HERMES, ToolForm
from adaptspec.server.api.tools import TOOL_PATH, tool_grammar
from adaptspec.server.api.wire import WireModel
from adaptspec.server.limits import ServerLimits


class PredictedText(WireModel):
    """What the answer is expected to be."""

    type: Literal["content"]
    content: Text


_NO_ALTERNATIVES = {"properties": {"top_logprobs": {"enum": [0, None]}}}
_WITH_LOGPROBS = {"properties": {"logprobs": {"const": True}}, "required": ["logprobs"]}
_NO_TOOLS = {"anyOf": [{"type": "null"}, {"type": "array", "maxItems": 0}]}


class ChatBody(GenerationBody, PromptFields, ConstraintFields, Hints):
    """A request for the next message of a conversation."""

    messages: Messages
    max_completion_tokens: MostTokens = None
    logprobs: bool | None = None
    top_logprobs: Alternatives | None = None
    prediction: PredictedText | None = None
    parallel_tool_calls: bool | None = None
    verbosity: Verbosity = None

    no_ops: ClassVar[Mapping[str, tuple[object, ...]]] = {
        **GenerationBody.no_ops,
        "add_special_tokens": (False,),  # a chat template writes them
        "audio": (),
        "echo": (False,),
        "function_call": ("none", "auto"),
        "functions": ([],),
        "modalities": (["text"],),
        "moderation": (),
        "web_search_options": (),
    }
    remedies: ClassVar[Mapping[str, str]] = {
        "audio": "it writes text only, so leave it out",
        "function_call": "send tool_choice instead",
        "functions": "send them as tools instead",
        "moderation": "it moderates nothing, so leave it out",
        "web_search_options": "it cannot search, so leave it out, or send a tool that does",
    }
    other_names: ClassVar[Mapping[str, str]] = {
        **GenerationBody.other_names,
        "input": "messages",
        "instructions": "messages",
        "max_output_tokens": "max_completion_tokens",
        "prompt": "messages",
        "reasoning": "reasoning_effort",
        "system": "messages",
        "text": "response_format",
    }
    together: ClassVar[Sequence[Mapping[str, Any]]] = (
        *GenerationBody.together,
        {"anyOf": [_WITH_LOGPROBS, _NO_ALTERNATIVES]},
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
    tool_path: ClassVar[str] = TOOL_PATH  # of schemas, for messages

    @property
    def contents(self) -> list[dict[str, str]]:
        return [message.plain() for message in self.messages]

    @property
    def asked_tokens(self) -> tuple[str, int] | None:
        if self.max_completion_tokens is None:
            return super().asked_tokens
        return "max_completion_tokens", self.max_completion_tokens

    @property
    def alternatives(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def calls(self) -> bool:
        return bool(self.tools) and self.tool_choice != "none"

    @property
    def constrained_by(self) -> str | None:
        """The field for which there may be a grammar, which takes its time to write; None where there is none."""
        if self.asked is not None:
            return self.asked.param
        if self.tools:
            return "tools"
        return self.schema_path.removesuffix(".schema").removesuffix(".json_schema") if self.wants_json else None

    def grammar(self, limits: ServerLimits = ServerLimits(), form: ToolForm = HERMES) -> Grammar | None:
        """What the answer must be; None where any text will do. `form` is how calls are written.

        Where a call may be made, but need not be, an answer is calls or what `response_format` asks for; a call that
        must be made leaves the format to a later turn. Words of schemas that are left out are added to `warnings`.

        Raises RequestError for a schema that is not valid, too much, or strict and cannot be kept to.
        """
        if not self.calls:
            return self.constraint(limits)
        answer = None
        if mode_of(self.tool_choice) == "auto":
            answer = schema_of(self.response_format, limits, self.warnings, self.schema_path)
        return tool_grammar(
            self.tools or (),
            self.tool_choice,
            parallel=self.parallel_tool_calls is not False,
            limits=limits,
            form=form,
            answer=None if answer is None else answer | {EXTENSION: JSON_STYLE},
            warnings=self.warnings,
            path=self.tool_path,
        )

    def call_reader(self, form: ToolForm = HERMES) -> CallReader:
        """Reads the calls of one answer, which are written in `form`."""
        names, wanted = self.tool_names, chosen_names(self.tool_choice)
        callable_names = names if wanted is None else [name for name in names if name in wanted]
        return CallReader(self.calls, form, callable_names)

    @model_validator(mode="after")
    def _check_chat(self) -> ChatBody:
        if self.asked is not None and self.calls:
            raise RequestError(
                f"{self.asked.param} and tools cannot both say what to write; send one of them", self.asked.param
            )
        if self.calls and self.adaptspec is not None and self.adaptspec.provenance:
            raise RequestError("adaptspec.provenance is of text, not of calls; leave it or tools out", PROVENANCE)
        if self.top_logprobs and not self.logprobs:
            raise RequestError("top_logprobs needs logprobs: true; leave it out otherwise", "top_logprobs")
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise RequestError("send max_completion_tokens or max_tokens, not both", "max_tokens")
        return self


class Alternative(Answer):
    """A token and its log-probability."""

    token: str
    logprob: float
    bytes: list[int]


class ChatToken(Alternative):
    """A token of the answer, and the likeliest in its place."""

    top_logprobs: list[Alternative]


class ChatLogprobs(Answer):
    """Of each token."""

    content: list[ChatToken]
    refusal: None


class Called(Answer):
    """A function and its arguments, as JSON."""

    name: str
    arguments: str


class Call(Answer):
    """A tool call."""

    id: str
    type: Literal["function"]
    function: Called


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


class ChatReply(Reply):
    """Answers a chat."""

    prefix = "chatcmpl"
    whole_model = ChatCompletion
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(
        self,
        model: str,
        body: ChatBody,
        bytes_of: Bytes,
        hidden: Collection[int] = (),
        leading: Bytes | None = None,
        *,
        form: ToolForm = HERMES,
    ) -> None:
        """`hidden` are the special tokens, which are in no text. `leading` are the bytes of a token that begins one.

        `form` is how calls are written.
        """
        super().__init__(model, body.choices, body.warnings)
        self._bytes_of = bytes_of
        self._match = partial(ContentLogprobs, bytes_of, hidden, leading)
        self._logprobs = bool(body.logprobs)
        self._new_reader = partial(body.call_reader, form)
        self._reasoning: Reasoning | None = None
        self._readings: dict[int, _Reading] = {}

    def expect(self, reasoning: Reasoning | None) -> None:
        """Answers may begin with a reasoning, or go on in one."""
        self._reasoning = reasoning
        self.reasoning_tokens = None if reasoning is None else 0

    def chunks(self, index: int, delta: Delta, *, first: bool) -> Iterator[Json]:
        if first:
            yield _chunk(index, {"role": "assistant", "content": ""})
        reading = self._readings.get(index) or self._readings.setdefault(index, self._begun())
        pieces = [_piece(part) for part in reading.parts(delta)]
        logprobs = self._answer_logprobs(reading, delta.logprobs, delta.text, final=delta.completion is not None)
        self._count(reading, delta.tokens)
        if logprobs is not None and not logprobs.content:
            logprobs = None
        if logprobs is not None and all("reasoning_content" in piece for piece in pieces):
            pieces.append({"content": ""})
        for piece in pieces:  # the tokens of a round come once, with what is no reasoning
            if logprobs is None or "reasoning_content" in piece:
                yield _chunk(index, piece)
                continue
            yield _chunk(index, piece, logprobs.written())
            reading.told_logprobs = True
            logprobs = None
        if delta.completion is not None:
            # As in a whole answer, none of whose tokens may be of its content.
            none = chat_logprobs([], self._bytes_of) if self._logprobs and not reading.told_logprobs else None
            yield _chunk(index, {}, None if none is None else none.written(), _finish(delta.completion, reading.calls))

    def provenance(self, delta: Delta, choice: Json) -> Json:
        words = choice["delta"].get("reasoning_content") or choice["delta"].get("content")
        if delta.pieces is None or not words:
            return {}
        return shown_pieces(self._readings[choice["index"]].pieces())

    def choice(self, index: int, completion: Completion) -> ChatChoice:
        reading = self._begun()
        parts = [*reading.reader.feed(completion.text), *reading.reader.end()]
        thoughts = "".join(part.text for part in parts if isinstance(part, ReasoningPiece))
        content, calls = gathered([part for part in parts if not isinstance(part, ReasoningPiece)])
        message = AssistantMessage(role="assistant", content=content, refusal=None)
        if thoughts:
            message.reasoning_content = thoughts
        if reading.reader.unfinished and not content:
            message.content = None
        if calls:
            message.tool_calls = calls
        self._count(reading, completion.tokens)
        return ChatChoice(
            index=index,
            message=message,
            logprobs=self._answer_logprobs(reading, completion.logprobs, completion.text, final=True),
            finish_reason=_finish(completion, reading.calls),
        )

    def _begun(self) -> _Reading:
        return _Reading(self._reasoning, self._new_reader(), self._match())

    def _count(self, reading: _Reading, tokens: Sequence[int]) -> None:
        """Count the tokens of the reasoning, if there may be one."""
        if self.reasoning_tokens is not None:
            before = reading.tokens.count
            reading.tokens.answer((self._bytes_of(token), None) for token in tokens)
            self.reasoning_tokens += reading.tokens.count - before

    def _answer_logprobs(
        self, reading: _Reading, entries: Sequence[TokenLogprob], text: str, *, final: bool
    ) -> ChatLogprobs | None:
        """The log-probabilities of tokens of the answer whose text is out."""
        if not self._logprobs:
            return None
        return answer_logprobs(
            reading.shown, reading.matched.take(entries, text, final=final), self._bytes_of, final=final
        )


class _Reading:
    """What has been read of one choice."""

    def __init__(self, reasoning: Reasoning | None, calls: CallReader, matched: ContentLogprobs) -> None:
        self.calls = calls
        self.reader = ReasoningReader(reasoning, calls)
        self.tokens = ReasoningTokens[None](reasoning)
        self.matched = matched
        self.shown = ReasoningTokens[ShownToken](reasoning)
        self.told_logprobs = False  # in a chunk
        self._queue = PieceQueue()
        self._spans: deque[Span] = deque()

    def parts(self, delta: Delta) -> list[Part | ReasoningPiece]:
        """What a delta adds."""
        parts = [*self.reader.feed(delta.text), *(self.reader.end() if delta.completion is not None else ())]
        self._spans = deque(self.reader.spans)
        self._queue.put(delta.pieces or ())
        return parts

    def pieces(self) -> list[Piece]:
        """Who drafted the next span of text of the last delta."""
        span = self._spans.popleft()
        self._queue.take(span.skipped)
        return self._queue.take(len(span.text))


def answer_logprobs(
    tokens: ReasoningTokens[ShownToken], shown: Sequence[ShownToken], bytes_of: Bytes, *, final: bool
) -> ChatLogprobs:
    """Log-probabilities of the `shown` tokens that belong to the answer."""
    known = tokens.answer((one.raw, one) for one in shown) + (tokens.end() if final else [])
    raws = [one.raw[len(one.raw) - size :] for one, size in known]
    return chat_logprobs([one.entry for one, _ in known], bytes_of, raws)


def chat_logprobs(
    entries: Sequence[TokenLogprob], bytes_of: Bytes, shown: Sequence[bytes] | None = None
) -> ChatLogprobs:
    """The `logprobs` of a chat's choice; `shown` are the bytes of its tokens, None for all that they have."""

    def token(raw: bytes, logprob: float) -> Json:
        return {"token": raw.decode(errors="replace"), "logprob": logprob, "bytes": list(raw)}

    def alternative(number: int, logprob: float) -> Alternative:
        return Alternative(**token(bytes_of(number), logprob))

    raws = [bytes_of(one.token) for one in entries] if shown is None else shown
    tokens = [
        ChatToken(**token(raw, one.logprob), top_logprobs=[alternative(*other) for other in one.top])
        for one, raw in zip(entries, raws, strict=True)
    ]
    return ChatLogprobs(content=tokens, refusal=None)


def gathered(parts: Sequence[Part]) -> tuple[str | None, list[Call]]:
    """The content of a message, None where there are only calls, and its tool calls."""
    content, calls = "", []
    for part in parts:
        if isinstance(part, TextPiece):
            content += part.text
        elif isinstance(part, CallStart):
            calls.append(_call(part.name))
        else:
            calls[part.index].function.arguments += part.text
    return content if content or not calls else None, calls


def _call(name: str) -> Call:
    return Call(id=new_call_id(), type="function", function=Called(name=name, arguments=""))


def _piece(part: Part | ReasoningPiece) -> Json:
    if isinstance(part, ReasoningPiece):
        return {"reasoning_content": part.text}
    if isinstance(part, TextPiece):
        return {"content": part.text}
    if isinstance(part, CallStart):
        return {"tool_calls": [{"index": part.index, **_call(part.name).written()}]}
    return {"tool_calls": [{"index": part.index, "function": {"arguments": part.text}}]}


def _finish(completion: Completion, reader: CallReader) -> Finish:
    # A stop string may cut a call short: its arguments are no JSON then, and no client should call with them.
    if completion.finish is FinishReason.STOP:
        return "tool_calls" if reader.calls and reader.whole else "stop"
    return "length"


def _chunk(index: int, delta: Json, logprobs: Json | None = None, finish: Finish | None = None) -> Json:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}

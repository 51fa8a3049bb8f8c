"""`/v1/completions` on the wire: its body, and its answers, whole and in pieces."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from adaptspec import results
from adaptspec.request import Grammar
from adaptspec.results import Delta, FinishReason, TokenLogprob
from adaptspec.server.api.answers import Answer, Bytes, Finish, Json, Metrics, Reply, Usage
from adaptspec.server.api.constraints.structured_outputs import ConstraintFields
from adaptspec.server.api.generation_body import Alternatives, GenerationBody
from adaptspec.server.api.wire import TOKEN_ID
from adaptspec.server.limits import ServerLimits

Prompt = str | list[int]


def _prompts(value: object) -> list[Prompt]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value:
        if _is_tokens(value):
            return [value]
        if all(isinstance(item, str) for item in value) or all(_is_tokens(item) for item in value):
            return value
    raise PydanticCustomError(
        "prompt",
        "it must be a string, a list of strings, a list of token ids or a list of lists of token ids, and not empty",
    )


def _is_tokens(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int for item in value)


_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0, "format": TOKEN_ID}, "minItems": 1}
_TEXT = {"type": "string", "minLength": 1}
_PROMPTS: Json = {
    "anyOf": [
        _TEXT,
        {"type": "array", "items": _TEXT, "minItems": 1, "maxItems": ServerLimits().prompts},
        _IDS,
        {"type": "array", "items": _IDS, "minItems": 1, "maxItems": ServerLimits().prompts},
    ]
}


class CompletionBody(GenerationBody, ConstraintFields):
    """A request for completions of one or several prompts. `prompt` is always a list once read."""

    prompt: Annotated[list[Prompt], PlainValidator(_prompts), WithJsonSchema(_PROMPTS)]
    echo: bool | None = None
    logprobs: Alternatives | None = None

    no_ops: ClassVar[Mapping[str, tuple[object, ...]]] = {
        **GenerationBody.no_ops,
        "add_special_tokens": (True,),
        "suffix": ("",),
    }

    prompt_field: ClassVar[str] = "prompt"
    operation: ClassVar[str] = "text_completion"
    usual_tokens: ClassVar[int | None] = 16  # as at OpenAI

    @property
    def contents(self) -> list[dict[str, str]]:
        return [{"role": "user", "content": prompt} for prompt in self.prompt if isinstance(prompt, str)]

    @property
    def alternatives(self) -> int | None:
        return self.logprobs

    @property
    def echoes(self) -> bool:
        return bool(self.echo)

    @property
    def constrained_by(self) -> str | None:
        """The field with a grammar, which takes its time to compile; None where there is none."""
        if self.asked is not None:
            return self.asked.param
        return "response_format" if self.wants_json else None

    def grammar(self, limits: ServerLimits = ServerLimits()) -> Grammar | None:
        """What each answer must be; None where any text will do. Raises RequestError for too much of a constraint."""
        return self.constraint(limits)


class CompletionLogprobs(Answer):
    """Of each token; the first of an echoed prompt has none."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(Answer):
    """One completion."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Finish


class Completion(Answer):
    """Completions of one or several prompts."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    metrics: Metrics
    warnings: list[str] | None = None


class CompletionReply(Reply):
    """Answers a request for completions."""

    prefix = "cmpl"
    whole_model = Completion
    whole_object = "text_completion"
    chunk_object = "text_completion"

    def __init__(self, model: str, body: CompletionBody, bytes_of: Bytes) -> None:
        super().__init__(model, body.choices, body.warnings)
        self._bytes_of = bytes_of
        self._logprobs = body.logprobs is not None
        self._echoes: list[tuple[str, int]] = []
        self._writers: dict[int, LogprobsWriter] = {}

    def echo(self, prompts: Iterable[tuple[str, int]]) -> None:
        """Begin each answer with its prompt, of which this is the text and the first token."""
        self._echoes = [prompt for prompt in prompts for _ in range(self.choices)]

    def chunks(self, index: int, delta: Delta, *, first: bool) -> Iterator[Json]:
        begins = first and bool(self._echoes)
        text = (self._echoes[index][0] if begins else "") + delta.text
        if text or begins or (self._logprobs and delta.tokens):
            logprobs = self._told(index, (*delta.prompt_logprobs, *delta.logprobs), begins=begins)
            yield _chunk(index, text, None if logprobs is None else logprobs.written())
        if delta.completion is not None:
            yield _chunk(index, "", finish=_finish(delta.completion))

    def choice(self, index: int, completion: results.Completion) -> CompletionChoice:
        entries = (*completion.prompt_logprobs, *completion.logprobs)
        return CompletionChoice(
            index=index,
            text=(self._echoes[index][0] if self._echoes else "") + completion.text,
            logprobs=self._told(index, entries, begins=bool(self._echoes)),
            finish_reason=_finish(completion),
        )

    def _told(self, index: int, entries: Sequence[TokenLogprob], *, begins: bool) -> CompletionLogprobs | None:
        if not self._logprobs:
            return None
        writer = self._writers.setdefault(index, LogprobsWriter(self._bytes_of))
        return writer.write(entries, self._echoes[index][1] if begins else None)


class LogprobsWriter:
    """Writes the `logprobs` of one completion's choice, all at once or in pieces that go on from each other.

    `text_offset` counts the characters that were complete before each token. Bytes that can be part of no character
    are one, too: the text has U+FFFD for them.
    """

    def __init__(self, bytes_of: Bytes) -> None:
        self._bytes_of = bytes_of
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._characters = 0

    def write(self, entries: Iterable[TokenLogprob], first: int | None = None) -> CompletionLogprobs:
        """The next tokens. `first` is a token that comes before them and that nothing came before: it has no number."""
        written = CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
        for entry in (*(() if first is None else (TokenLogprob(first, 0.0),)), *entries):
            raw = self._bytes_of(entry.token)
            # The token itself is always among them, as at OpenAI.
            every = (*entry.top, (entry.token, entry.logprob))
            top = {_name(self._bytes_of(token)): logprob for token, logprob in every}
            written.tokens.append(_name(raw))
            written.token_logprobs.append(entry.logprob)
            written.top_logprobs.append(top)
            written.text_offset.append(self._characters)
            self._characters += len(self._decoder.decode(raw))
        if first is not None:  # how likely it was nobody knows
            written.token_logprobs[0] = written.top_logprobs[0] = None
        return written


def _name(raw: bytes) -> str:
    """A token as a string that no other token has: half a character is spelled out, as OpenAI does."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def _finish(completion: results.Completion) -> Finish:
    return "stop" if completion.finish is FinishReason.STOP else "length"


def _chunk(index: int, text: str, logprobs: Json | None = None, finish: Finish | None = None) -> Json:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}

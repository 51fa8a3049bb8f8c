"""`/v1/completions`: its body, its answers, whole and in chunks, and its handler."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, ClassVar, Literal, cast

from aiohttp import web
from pydantic import Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator
from pydantic_core import PydanticCustomError

from adaptspec import results
from adaptspec.errors import RequestError
from adaptspec.request import Request
from adaptspec.results import Delta, FinishReason, TokenLogprob
from adaptspec.server import limits
from adaptspec.server.api.body import read_json
from adaptspec.server.api.constraints.structured_outputs import ConstraintFields
from adaptspec.server.api.fields import TOKEN_ID, Json, Only
from adaptspec.server.api.outputs import Answer, Bytes, ChunkWriter, Finish, Metrics, Usage, new_id
from adaptspec.server.api.sampling import Alternatives, GenerationRequest
from adaptspec.server.generation import GENERATION, Generation, key_name, with_unique_ids
from adaptspec.server.routes import Operation


def _with_all_forms(value: object, handler: ValidatorFunctionWrapHandler) -> object:
    """The same prompts, with one error that names all forms."""
    if isinstance(value, list) and len(value) > limits.PROMPTS and not isinstance(value[0], int):
        counts = {"count": len(value), "most": limits.PROMPTS}
        raise PydanticCustomError("too_many", "has {count} prompts; send at most {most} in one request", counts)
    try:
        return handler(value)
    except ValidationError as error:
        raise PydanticCustomError(
            "prompt",
            "it must be a string, a list of strings, a list of token ids or a list of lists of token ids, and not "
            "empty",
        ) from error


# The engine checks the largest id, and its error names the range.
_Id = Annotated[int, Field(json_schema_extra={"minimum": 0, "format": TOKEN_ID})]
_Ids = Annotated[list[_Id], Field(min_length=1, fail_fast=True)]
_Texts = Annotated[list[str], Field(min_length=1, max_length=limits.PROMPTS, fail_fast=True)]
_Lists = Annotated[list[_Ids], Field(min_length=1, max_length=limits.PROMPTS, fail_fast=True)]
PromptField = Annotated[str | _Ids | _Texts | _Lists, WrapValidator(_with_all_forms)]


class CompletionRequest(GenerationRequest, ConstraintFields):
    """A request for completions of one or several prompts."""

    prompt: PromptField
    echo: bool | None = None
    logprobs: Alternatives | None = None

    add_special_tokens: Annotated[Any, Only(True)] = None
    suffix: Annotated[Any, Only("")] = None

    prompt_field: ClassVar[str] = "prompt"
    operation: ClassVar[str] = "text_completion"
    default_tokens: ClassVar[int | None] = 16  # as at OpenAI

    @property
    def prompts(self) -> Sequence[str | list[int]]:
        """Each prompt as a text or as token ids."""
        match self.prompt:
            case str() as text:
                return [text]
            case [int(), *_] as ids:
                return [cast("list[int]", ids)]
            case several:
                return cast("list[str | list[int]]", several)

    @property
    def contents(self) -> list[dict[str, str]]:
        return [{"role": "user", "content": prompt} for prompt in self.prompts if isinstance(prompt, str)]

    @property
    def alternatives(self) -> int | None:
        return self.logprobs

    @property
    def echoes(self) -> bool:
        return bool(self.echo)

    @property
    def constrained_by(self) -> str | None:
        if self.asked is not None:
            return self.asked.param
        return "response_format" if self.wants_json else None


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


class CompletionWriter(ChunkWriter):
    """Answers a request for completions."""

    whole_model = Completion
    whole_object = "text_completion"
    chunk_object = "text_completion"

    def __init__(
        self,
        identity: str,
        model: str,
        body: CompletionRequest,
        requests: Sequence[Request],
        *,
        bytes_of: Bytes,
        echoes: Sequence[str] = (),
    ) -> None:
        """`echoes` are the texts of the prompts, with which their answers begin; empty where they do not."""
        super().__init__(identity, model, body, requests)
        self._bytes_of = bytes_of
        self._logprobs = body.logprobs is not None
        first_tokens = [request.prompt[0] for request in requests]
        self._echoes = list(zip([text for text in echoes for _ in range(body.choices)], first_tokens, strict=False))
        self._writers: dict[int, LogprobsWriter] = {}

    def chunks(self, index: int, delta: Delta, *, first: bool) -> Iterator[Json]:
        begins = first and bool(self._echoes)
        text = (self._echoes[index][0] if begins else "") + delta.text
        if text or begins or (self._logprobs and delta.tokens):
            logprobs = self._logprobs_of(index, (*delta.prompt_logprobs, *delta.logprobs), begins=begins)
            yield _chunk(index, text, None if logprobs is None else logprobs.written())
        if delta.completion is not None:
            yield _chunk(index, "", finish=_finish(delta.completion))

    def choice(self, index: int, completion: results.Completion) -> CompletionChoice:
        entries = (*completion.prompt_logprobs, *completion.logprobs)
        return CompletionChoice(
            index=index,
            text=(self._echoes[index][0] if self._echoes else "") + completion.text,
            logprobs=self._logprobs_of(index, entries, begins=bool(self._echoes)),
            finish_reason=_finish(completion),
        )

    def _logprobs_of(self, index: int, entries: Sequence[TokenLogprob], *, begins: bool) -> CompletionLogprobs | None:
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
        """The next tokens. `first` is the first token of the prompt, which comes before them and has no probability."""
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
        if first is not None:  # nothing predicts it
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


@Operation("post", "/v1/completions", CompletionRequest, Completion, streams=True, refused=(429,))
async def completions(http: web.Request) -> web.StreamResponse:
    """Complete prompts."""
    generation = http.app[GENERATION]
    with generation.admitted():
        body = await read_json(http, CompletionRequest)
        identity, prompts = new_id("cmpl-"), generation.prompts
        requests = await completion_requests(generation, identity, body, key_name(http))
        echoes: list[str] = []
        if body.echoes:  # token ids as the text they stand for, once it is known that they exist
            echoes = [given if isinstance(given, str) else await prompts.decode(given) for given in body.prompts]
    name, bytes_of = generation.engine.target.name, prompts.bytes_of
    writer = CompletionWriter(identity, name, body, requests, bytes_of=bytes_of, echoes=echoes)
    return await generation.respond(http, body, requests, writer)


async def completion_requests(
    generation: Generation, identity: str, body: CompletionRequest, key: str | None = None
) -> list[Request]:
    """One engine request per prompt and choice, prompt by prompt.

    Raises RequestError, before the next prompt is encoded, if the engine can never serve one of them.
    """
    generation.check(body, len(body.prompts))
    grammar = await generation.compile(body, body.constraint)
    requests: list[Request] = []

    def add(prompt: tuple[int, ...]) -> None:
        if not prompt and len(body.prompts) > 1:
            path = f"prompt[{len(requests) // body.choices}]"
            raise RequestError(f"{path} is empty; send at least one token", path)
        requests.extend(generation.requests(identity, body, prompt, grammar=grammar, key=key))

    texts = [prompt for prompt in body.prompts if isinstance(prompt, str)]
    await generation.prompts.encode_all(texts, check=add)
    for prompt in body.prompts:
        if not isinstance(prompt, str):
            add(tuple(prompt))
    _check_echoes(body, requests)
    return with_unique_ids(requests)


def _check_echoes(body: CompletionRequest, requests: Sequence[Request]) -> None:
    if not body.echoes or body.alternatives is None:
        return
    numbers = sum(len(request.prompt) for request in requests) * (1 + body.alternatives)
    if numbers > limits.PROMPT_LOGPROBS:
        raise RequestError(
            f"logprobs of all prompt tokens are {numbers} numbers here; this server sends at most "
            f"{limits.PROMPT_LOGPROBS} in one answer: send fewer or shorter prompts, or ask for fewer alternatives",
            "logprobs",
        )


ROUTES = (completions,)

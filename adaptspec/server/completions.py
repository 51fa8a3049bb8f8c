"""`/v1/completions` on the wire: its body, and the shapes of its answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from adaptspec.server.limits import ServerLimits
from adaptspec.server.logprobs import Bytes, CompletionLogprobs
from adaptspec.server.wire import TOKEN_ID, Alternatives, GenerationBody
from adaptspec.types import Completion, Delta, TokenLogprob

DEFAULT_MAX_TOKENS = 16  # as at OpenAI

Prompt = str | list[int]
Json = dict[str, Any]


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
_PROMPTS: dict[str, Any] = {
    "anyOf": [
        _TEXT,
        {"type": "array", "items": _TEXT, "minItems": 1, "maxItems": ServerLimits().prompts},
        _IDS,
        {"type": "array", "items": _IDS, "minItems": 1, "maxItems": ServerLimits().prompts},
    ]
}


class CompletionBody(GenerationBody):
    """A request for completions of one or several prompts. `prompt` is always a list once read."""

    prompt: Annotated[list[Prompt], PlainValidator(_prompts), WithJsonSchema(_PROMPTS)]
    echo: bool | None = None
    logprobs: Alternatives | None = None

    no_ops: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "best_of": (1, None),
        "suffix": (None, ""),
    }

    prompt_field: ClassVar[str] = "prompt"
    operation: ClassVar[str] = "text_completion"

    @property
    def prompts(self) -> int:
        """See `GenerationBody.prompts`."""
        return len(self.prompt)

    @property
    def contents(self) -> list[dict[str, str]]:
        """See `GenerationBody.contents`."""
        return [{"role": "user", "content": prompt} for prompt in self.prompt if isinstance(prompt, str)]

    @property
    def wanted_tokens(self) -> int:
        """Output tokens asked for."""
        return DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens

    @property
    def alternatives(self) -> int | None:
        """See `GenerationBody.alternatives`."""
        return self.logprobs

    @property
    def echoes(self) -> bool:
        """See `GenerationBody.echoes`."""
        return bool(self.echo)


class CompletionDialect:
    """How completions are written. `prompts` are the texts to begin answers with, one per choice, where they echo."""

    id_prefix = "cmpl"
    whole_object = "text_completion"
    chunk_object = "text_completion"

    def __init__(self, bytes_of: Bytes, *, logprobs: bool = False, prompts: Sequence[Echo] = ()) -> None:
        """`logprobs`: tell those of every token."""
        self._bytes_of = bytes_of
        self._logprobs = logprobs
        self._prompts = prompts
        self._writers: dict[int, CompletionLogprobs] = {}

    def choice(self, index: int, completion: Completion) -> Json:
        """A whole answer."""
        echo = self._prompts[index].text if self._prompts else ""
        logprobs = self._written(index, completion.prompt_logprobs, completion.logprobs, begins=True)
        return _choice(index, echo + completion.text, logprobs, completion.finish.value)

    def chunks(self, index: int, delta: Delta, *, first: bool) -> Iterator[Json]:
        """What one piece of an answer adds. The prompt's own chunk comes first where it is echoed."""
        begins = first and bool(self._prompts)
        text = (self._prompts[index].text if begins else "") + delta.text
        if text or begins or (self._logprobs and delta.tokens):
            yield _choice(index, text, self._written(index, delta.prompt_logprobs, delta.logprobs, begins=begins), None)
        if delta.completion is not None:
            yield _choice(index, "", None, delta.completion.finish.value)

    def _written(
        self, index: int, of_prompt: Sequence[TokenLogprob], of_output: Sequence[TokenLogprob], *, begins: bool
    ) -> Json | None:
        if not self._logprobs:
            return None
        writer = self._writers.setdefault(index, CompletionLogprobs(self._bytes_of))
        start = self._prompts[index].first if begins and self._prompts else None
        return writer.write((*of_prompt, *of_output), start)


@dataclass(frozen=True)
class Echo:
    """A prompt as an answer that echoes it begins: its text, and its first token."""

    text: str
    first: int


def _choice(index: int, text: str, logprobs: Json | None, finish: str | None) -> Json:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}

"""`/v1/completions` on the wire: its body, and the shapes of its answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import PlainValidator
from pydantic_core import PydanticCustomError

from adaptspec.server.wire import GenerationBody
from adaptspec.types import Completion

DEFAULT_MAX_TOKENS = 16  # as at OpenAI

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


class CompletionBody(GenerationBody):
    """A request for completions of one or several prompts. `prompt` is always a list once read."""

    prompt: Annotated[list[Prompt], PlainValidator(_prompts)]

    no_ops: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "n": (1, None),
        "best_of": (1, None),
        "echo": (False, None),
        "logprobs": (None,),
        "suffix": (None, ""),
    }

    prompt_field: ClassVar[str] = "prompt"
    operation: ClassVar[str] = "text_completion"

    @property
    def characters(self) -> list[int]:
        """Of every prompt; 0 for one of token ids."""
        return [len(prompt) if isinstance(prompt, str) else 0 for prompt in self.prompt]

    @property
    def contents(self) -> list[dict[str, str]]:
        """See `GenerationBody.contents`."""
        return [{"role": "user", "content": prompt} for prompt in self.prompt if isinstance(prompt, str)]

    @property
    def wanted_tokens(self) -> int:
        """Output tokens asked for."""
        return DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens


class CompletionDialect:
    """How completions are written."""

    id_prefix = "cmpl"
    whole_object = "text_completion"
    chunk_object = "text_completion"

    def choice(self, index: int, completion: Completion) -> dict[str, Any]:
        """A whole answer."""
        return _choice(index, completion.text, completion.finish.value)

    def opening(self, index: int) -> dict[str, Any] | None:  # noqa: ARG002 (the Dialect protocol)
        """Nothing comes before the text."""
        return None

    def piece(self, index: int, text: str) -> dict[str, Any]:
        """A piece of an answer."""
        return _choice(index, text, None)

    def ending(self, index: int, completion: Completion) -> dict[str, Any]:
        """The end of an answer."""
        return _choice(index, "", completion.finish.value)


def _choice(index: int, text: str, finish: str | None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": finish}

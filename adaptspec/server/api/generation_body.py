"""What requests to generate text have in common: fields, what they may not say together, and what the engine gets."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainValidator,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)

from adaptspec.errors import RequestError
from adaptspec.request import MAX_LOGPROBS, Grammar, SamplingParams, SpeculationParams
from adaptspec.server.api.neutral_values import NEUTRAL
from adaptspec.server.api.warnings import Warnings
from adaptspec.server.api.wire import Name, RequestBody, TokenId, Whole, WireModel, shown
from adaptspec.server.limits import ServerLimits

PROVENANCE = "adaptspec.provenance"
NO_EFFECT = "Without effect: it cannot change the text."
Idle = Field(description=NO_EFFECT)

# Within 64 bits: a number of thousands of digits could not even be printed in an error message.
Int = Annotated[int, Whole, Field(ge=-(2**63) + 1, le=2**63 - 1)]
AtLeastNone = Annotated[int, Whole, Field(ge=0, le=2**63 - 1)]
AtLeastOne = Annotated[int, Whole, Field(ge=1, le=2**63 - 1)]
OPEN = -1  # tokens: as many as there is room for, as at llama.cpp and LM Studio
Tokens = Annotated[int, Whole, Field(ge=OPEN, le=2**63 - 1)]
MostTokens = Annotated[
    AtLeastOne | None,
    BeforeValidator(lambda tokens: None if tokens == OPEN else tokens),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"const": OPEN}, {"type": "null"}]}),
]
Alternatives = Annotated[int, Whole, Field(ge=0, le=MAX_LOGPROBS)]
# vLLM's -1 and llama.cpp's 0 both mean that any token may be drawn.
TopK = Annotated[int, Whole, Field(ge=-1, le=2**63 - 1), AfterValidator(lambda top_k: max(top_k, 0))]
Temperature = Annotated[float, Field(ge=0, le=100)]
Share = Annotated[float, Field(ge=0, le=1)]
TopP = Annotated[float, Field(gt=0, le=1)]
CacheSalt = Annotated[
    Name, Field(description="Only requests with the same salt reuse each other's cached prompts, as at vLLM.")
]
Penalty = Annotated[float, Field(ge=-2, le=2)]
# `ServerLimits` may be set otherwise; what is told of them is what they are by default.
Choices = Annotated[
    int, Whole, Field(ge=1), WithJsonSchema({"type": "integer", "minimum": 1, "maximum": ServerLimits().choices})
]


def _stops(value: object) -> tuple[str, ...] | None:
    stops = [value] if isinstance(value, str) else value
    if stops is None:
        return None
    if not isinstance(stops, (list, tuple)) or not all(isinstance(text, str) for text in stops):
        raise RequestError("stop must be a string or a list of strings", "stop")
    return tuple(stops)


_STOP_STRING = {"type": "string", "minLength": 1}
_STOP_STRINGS = {"type": "array", "items": _STOP_STRING, "maxItems": ServerLimits().stop_strings}
Stops = Annotated[
    tuple[str, ...] | None,
    PlainValidator(_stops),
    WithJsonSchema({"anyOf": [_STOP_STRING, _STOP_STRINGS, {"type": "null"}]}),
]


def _keyed_by_tokens(biases: dict[str, float]) -> dict[str, float]:
    for key in biases:
        if not (key.isascii() and key.isdecimal() and len(key) < 19):
            raise RequestError(f"logit_bias has the key {shown(key)}; keys must be token ids such as 42", "logit_bias")
    return biases


_BIASES = {
    "type": "object",
    "propertyNames": {"pattern": "^[0-9]{1,18}$"},
    "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
}
Biases = Annotated[
    dict[str, float],
    BeforeValidator(lambda biases: {} if biases == [] else biases),  # llama.cpp has lists
    AfterValidator(_keyed_by_tokens),
    WithJsonSchema({"anyOf": [_BIASES, {"type": "array", "maxItems": 0}]}),
]
STREAMS: Mapping[str, Any] = {"properties": {"stream": {"const": True}}, "required": ["stream"]}
NO_PROVENANCE: Mapping[str, Any] = {
    "properties": {"adaptspec": {"properties": {"provenance": {"enum": [False, None]}}}}
}
_OFF: Mapping[str, Any] = {"enum": [False, None]}
_NO_OPTIONS: Mapping[str, Any] = {"properties": {"include_usage": _OFF, "continuous_usage_stats": _OFF}}
_PENALTIES = ("presence_penalty", "frequency_penalty", "repetition_penalty")
_PLAIN_SAMPLING = ("temperature", "top_k", "top_p", "min_p", *_PENALTIES, "seed", "ignore_eos", "min_tokens")


class SpeculationFields(WireModel):
    """The `adaptspec` object of a request. `provenance`: streamed answers name the drafter of each piece.

    `prefix_cache` false: the request reuses no cached prompt and caches none for others.
    """

    policy: Name | None = None
    task: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    max_depth: AtLeastNone | None = None
    stop_threshold: Share | None = None
    provenance: bool | None = None
    prefix_cache: bool | None = None

    def speculation(self) -> SpeculationParams:
        return SpeculationParams(
            self.policy, self.task, self.max_depth, self.stop_threshold, provenance=bool(self.provenance)
        )


class StreamOptions(WireModel):
    """Options of a streamed answer. `continuous_usage_stats` reports the usage so far with every chunk, as vLLM does.

    It has an effect only next to `include_usage`.
    """

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: Annotated[bool | None, Idle] = None

    @property
    def effective(self) -> bool:
        """Whether an answer with these options differs from one without."""
        return bool(self.include_usage or self.continuous_usage_stats)


class SamplingFields(WireModel):
    """How tokens are drawn, and when an answer ends."""

    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: Share | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] | None = None
    logit_bias: Biases | None = None
    seed: Int | None = None
    stop: Stops = None
    stop_token_ids: Annotated[list[TokenId], Field(fail_fast=True)] | None = None
    ignore_eos: bool | None = None
    min_tokens: AtLeastNone | None = None


class GenerationBody(SamplingFields, RequestBody):
    """What completions and chat completions have in common. null means the default, as at OpenAI.

    `max_tokens` above what the context has room for is refused; left out or -1, the answer may end where the context
    does, with the finish reason `length`. `adaptspec.max_depth` is a ceiling: a policy may stay below it. Fields of
    vLLM, SGLang and llama.cpp are accepted at the values that `x-neutral-values` lists, which change nothing.
    """

    prompt_field: ClassVar[str]  # where prompts come from, for messages
    operation: ClassVar[str]  # OpenTelemetry's name for it
    usual_tokens: ClassVar[int | None] = None  # of an answer without a limit; None: as many as there is room for

    model: Name | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Choices | None = None
    max_tokens: Tokens | None = None
    user: Annotated[str | None, Idle] = None
    cache_salt: CacheSalt | None = None
    adaptspec: SpeculationFields | None = None

    no_ops: ClassVar[Mapping[str, tuple[object, ...]]] = NEUTRAL
    other_names: ClassVar[Mapping[str, str]] = {
        "extra_key": "cache_salt",
        "max_length": "max_tokens",
        "max_new_tokens": "max_tokens",
        "stop_sequences": "stop",
    }
    together: ClassVar[Sequence[Mapping[str, Any]]] = (
        {"anyOf": [STREAMS, {"properties": {"stream_options": _NO_OPTIONS}}]},
        {"anyOf": [STREAMS, NO_PROVENANCE]},
    )

    @property
    @abstractmethod
    def contents(self) -> list[dict[str, str]]:
        """Roles and texts of what was sent; prompts of token ids have none."""

    @property
    def asked_tokens(self) -> tuple[str, int] | None:
        """The field that says how many output tokens are wanted, and how many; None where the client left it open."""
        return None if self.max_tokens in (None, OPEN) else ("max_tokens", self.max_tokens)

    @property
    def open_tokens(self) -> int | None:
        """Output tokens where the client left open how many are wanted; None: as many as there is room for."""
        return None if self.max_tokens == OPEN else self.usual_tokens

    @property
    def choices(self) -> int:
        return self.n or 1

    @property
    def alternatives(self) -> int | None:
        """Alternatives to tell per token with its log-probability; None where no log-probabilities are wanted."""
        return None

    @property
    def prefix_cache(self) -> bool:
        """Whether the request shares cached prompts with others."""
        return self.adaptspec is None or self.adaptspec.prefix_cache is not False

    @property
    def echoes(self) -> bool:
        """Whether the answer begins with its prompt."""
        return False

    @model_validator(mode="after")
    def _check_together(self) -> GenerationBody:
        if self.stream_options is not None and self.stream_options.effective and not self.stream:
            raise RequestError("stream_options needs stream: true; leave it out otherwise", "stream_options")
        if self.adaptspec is not None and self.adaptspec.provenance and not self.stream:
            raise RequestError("adaptspec.provenance needs stream: true; leave it out otherwise", PROVENANCE)
        field, tokens = self.asked_tokens or ("", 1)
        if tokens < 1 and not self.echoes:
            raise RequestError(f"{field} is {tokens}; it must be at least 1", field)
        return self

    def sampling(self, max_tokens: int, grammar: Grammar | None = None) -> SamplingParams:
        """How to draw tokens. Raises RequestError for values out of range."""
        given = {name: value for name in _PLAIN_SAMPLING if (value := getattr(self, name)) is not None}
        return SamplingParams(
            max_tokens=max_tokens,
            logit_bias={int(token): bias for token, bias in (self.logit_bias or {}).items()},
            stop=self.stop or (),
            stop_token_ids=tuple(self.stop_token_ids or ()),
            logprobs=self.alternatives,
            grammar=grammar,
            prompt_logprobs=self.alternatives if self.echoes else None,
            **given,
        )

    def speculation(self) -> SpeculationParams:
        """The request's own wishes. Raises RequestError for values out of range."""
        return self.adaptspec.speculation() if self.adaptspec is not None else SpeculationParams()


# What follows says nothing here: clients set it for OpenAI's own books, caches, tiers and reasoning models.

Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], Field(max_length=16)
]
EFFORT = (
    "Passed to the chat template. It also sets `enable_thinking` and `thinking`: false for none, true otherwise, over "
    "the server's own values; `chat_template_kwargs` of the request win."
)
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


def _without_effect(value: object, info: ValidationInfo) -> object:
    """Warn that verbosity has no effect; the default value gets no warning."""
    if isinstance(info.context, Warnings) and value not in (None, "medium"):
        info.context.add("field", "verbosity has no effect: no model here knows it; ask for a length in the prompt")
    return value


Verbosity = Annotated[Literal["low", "medium", "high"] | None, Idle, AfterValidator(_without_effect)]


class CacheOptions(WireModel):
    """How a cache of prompts is to be filled."""

    mode: Literal["implicit", "explicit"] | None = None
    ttl: str | None = None


class Hints(RequestBody):
    """What chats and responses have in common. `store`: nothing is stored, whatever it says."""

    metadata: Annotated[Metadata | None, Idle] = None
    store: Annotated[bool | None, Field(description=f"{NO_EFFECT} Nothing is stored.")] = None
    service_tier: Annotated[Literal["auto", "default", "flex", "scale", "priority", "fast"] | None, Idle] = None
    safety_identifier: Annotated[str | None, Idle] = None
    prompt_cache_key: Annotated[str | None, Idle] = None
    prompt_cache_retention: Annotated[Literal["in_memory", "in-memory", "24h"] | None, Idle] = None
    prompt_cache_options: Annotated[CacheOptions | None, Idle] = None

"""Fields that all requests to generate text share, and what the engine gets of them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

from adaptspec.errors import RequestError
from adaptspec.request import Grammar, SamplingParams, SpeculationParams
from adaptspec.server import limits
from adaptspec.server.api.fields import (
    NO_EFFECT,
    NOT_STRINGS,
    AtMost,
    Count,
    Ignored,
    Name,
    RequestBody,
    Share,
    TokenIds,
    Whole,
    WireModel,
    quoted,
    warnings_of,
)
from adaptspec.server.api.neutral_fields import NeutralFields

PROVENANCE = "adaptspec.provenance"
UNLIMITED = -1  # tokens: as many as there is room for, as at llama.cpp and LM Studio

OutputTokens = Annotated[int, Whole, Field(ge=UNLIMITED, le=limits.OUTPUT_TOKENS)]
Alternatives = Annotated[int, Whole, Field(ge=0, le=limits.LOGPROBS)]
# vLLM's -1 and llama.cpp's 0 both mean that any token may be drawn.
TopK = Annotated[int, Whole, Field(ge=-1, le=2**63 - 1), AfterValidator(lambda top_k: max(top_k, 0))]
Penalty = Annotated[float, Field(ge=-2, le=2)]
CacheSalt = Annotated[
    Name, Field(description="Only requests with the same salt reuse each other's cached prompts, as at vLLM.")
]
StopString = Annotated[str, Field(min_length=1, max_length=limits.STOP_CHARACTERS)]


def _list_of_strings(value: object) -> object:
    if not isinstance(value, list):
        raise PydanticCustomError(NOT_STRINGS, "it must be a list of strings")
    return value


StopStrings = (
    StopString
    | Annotated[list[StopString], Field(fail_fast=True), BeforeValidator(_list_of_strings), AtMost(limits.STOP_STRINGS)]
)


def _keyed_by_tokens(biases: dict[str, float]) -> dict[str, float]:
    for key in biases:
        if not (key.isascii() and key.isdecimal() and len(key) < 19):
            raise RequestError(f"logit_bias has the key {quoted(key)}; keys must be token ids such as 42", "logit_bias")
    return biases


Biases = Annotated[
    dict[str, Annotated[float, Field(ge=-100, le=100)]],
    AfterValidator(_keyed_by_tokens),
    AtMost(limits.LOGIT_BIAS),
    BeforeValidator(lambda biases: {} if biases == [] else biases),  # llama.cpp has lists
]


class SpeculationFields(WireModel):
    """The `adaptspec` object of a request. `provenance`: streamed answers name the drafter of each piece.

    `prefix_cache` false: the request reuses no cached prompt and caches none for others.
    """

    policy: Name | None = None
    task: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    max_depth: Count | None = None
    stop_threshold: Share | None = None
    provenance: bool | None = None
    prefix_cache: bool | None = None


class StreamOptions(WireModel):
    """Options of a streamed answer. `continuous_usage_stats` reports the usage so far with every chunk, as vLLM does.

    It has an effect only next to `include_usage`.
    """

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: Ignored[bool] = None


class SamplingFields(WireModel):
    """How tokens are drawn, and when an answer ends."""

    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: TopK | None = None
    min_p: Share | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] | None = None
    logit_bias: Biases | None = None
    seed: Annotated[int, Whole, Field(ge=-(2**63) + 1, le=2**63 - 1)] | None = None
    stop: StopStrings | None = None
    stop_token_ids: Annotated[TokenIds, AtMost(limits.STOP_TOKENS)] | None = None
    ignore_eos: bool | None = None
    min_tokens: Count | None = None


_PENALTIES = ("presence_penalty", "frequency_penalty", "repetition_penalty")
# Fields that the engine has by the same name.
_PLAIN_SAMPLING = ("temperature", "top_k", "top_p", "min_p", *_PENALTIES, "seed", "ignore_eos", "min_tokens")


class GenerationRequest(SamplingFields, NeutralFields, RequestBody):
    """What completions and chat completions have in common. null means the default, as at OpenAI.

    `max_tokens` above what the context has room for is refused; left out or -1, the answer may end where the context
    does, with the finish reason `length`. `adaptspec.max_depth` is a ceiling: a policy may stay below it. Fields of
    vLLM, SGLang and llama.cpp are accepted at the values that `x-neutral-values` lists, which change nothing.
    """

    prompt_field: ClassVar[str]  # where prompts come from, for messages
    operation: ClassVar[str]  # OpenTelemetry's name for it
    default_tokens: ClassVar[int | None] = None  # of an answer without a limit; None: as many as there is room for

    model: Name | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Whole, Field(ge=1, le=limits.CHOICES)] | None = None
    max_tokens: OutputTokens | None = None
    user: Ignored[str] = None
    cache_salt: CacheSalt | None = None
    adaptspec: SpeculationFields | None = None

    other_names: ClassVar[Mapping[str, str]] = {
        "extra_key": "cache_salt",
        "max_length": "max_tokens",
        "max_new_tokens": "max_tokens",
        "stop_sequences": "stop",
    }

    @property
    @abstractmethod
    def contents(self) -> list[dict[str, str]]:
        """Roles and texts of what was sent; prompts of token ids have none."""

    @property
    @abstractmethod
    def constrained_by(self) -> str | None:
        """The field for which there may be a grammar, which takes its time to write; None where there is none."""

    @property
    def asked_tokens(self) -> tuple[str, int] | None:
        """The field that says how many output tokens are wanted, and how many; None where the client left it open."""
        return None if self.max_tokens in (None, UNLIMITED) else ("max_tokens", self.max_tokens)

    @property
    def default_output(self) -> int | None:
        """Output tokens where the client left open how many are wanted; None: as many as there is room for."""
        return None if self.max_tokens == UNLIMITED else self.default_tokens

    @property
    def choices(self) -> int:
        return self.n or 1

    @property
    def alternatives(self) -> int | None:
        """Alternatives per token with its log-probability; None where no log-probabilities are wanted."""
        return None

    @property
    def wants_provenance(self) -> bool:
        return self.adaptspec is not None and bool(self.adaptspec.provenance)

    @property
    def prefix_cache(self) -> bool:
        """Whether the request shares cached prompts with others."""
        return self.adaptspec is None or self.adaptspec.prefix_cache is not False

    @property
    def echoes(self) -> bool:
        """Whether the answer begins with its prompt."""
        return False

    @model_validator(mode="after")
    def _check_fields_together(self) -> GenerationRequest:
        options = self.stream_options
        if options is not None and (options.include_usage or options.continuous_usage_stats) and not self.stream:
            raise RequestError("stream_options needs stream: true; leave it out otherwise", "stream_options")
        if self.wants_provenance and not self.stream:
            raise RequestError("adaptspec.provenance needs stream: true; leave it out otherwise", PROVENANCE)
        field, tokens = self.asked_tokens or ("", 1)
        if tokens < 1 and not self.echoes:
            raise RequestError(f"{field} is {tokens}; it must be at least 1", field)
        return self

    def to_sampling(self, max_tokens: int, grammar: Grammar | None = None) -> SamplingParams:
        """How to draw tokens. Raises RequestError for values out of range."""
        given: dict[str, Any] = {name: one for name in _PLAIN_SAMPLING if (one := getattr(self, name)) is not None}
        stop = self.stop or ()
        return SamplingParams(
            max_tokens=max_tokens,
            logit_bias={int(token): bias for token, bias in (self.logit_bias or {}).items()},
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
            stop_token_ids=tuple(self.stop_token_ids or ()),
            logprobs=self.alternatives,
            grammar=grammar,
            prompt_logprobs=self.alternatives if self.echoes else None,
            **given,
        )

    def to_speculation(self) -> SpeculationParams:
        """The overrides of the request. Raises RequestError for values out of range."""
        own = self.adaptspec or SpeculationFields()
        return SpeculationParams(
            own.policy, own.task, own.max_depth, own.stop_threshold, provenance=self.wants_provenance
        )


# Fields for OpenAI's billing, caches, service tiers and reasoning models.

Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], AtMost(limits.METADATA)
]
Effort = Annotated[
    Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"],
    Field(
        description="Passed to the chat template. It also sets `enable_thinking` and `thinking`: false for none, true "
        "otherwise, over the server's own values; `chat_template_kwargs` of the request win."
    ),
]


def _without_effect(value: object, info: ValidationInfo) -> object:
    """Warn that verbosity has no effect; the default value gets no warning."""
    if value not in (None, "medium"):
        words = "verbosity has no effect: no model here knows it; ask for a length in the prompt"
        warnings_of(info).add("field", words)
    return value


Verbosity = Annotated[Ignored[Literal["low", "medium", "high"]], AfterValidator(_without_effect)]


class CacheOptions(WireModel):
    """How a cache of prompts is to be filled."""

    mode: Literal["implicit", "explicit"] | None = None
    ttl: str | None = None


class IgnoredFields(WireModel):
    """What chats and responses have in common, without an effect. `store`: nothing is stored, whatever it says."""

    metadata: Ignored[Metadata] = None
    store: Annotated[bool | None, Field(description=f"{NO_EFFECT} Nothing is stored.")] = None
    service_tier: Ignored[Literal["auto", "default", "flex", "scale", "priority", "fast"]] = None
    safety_identifier: Ignored[str] = None
    prompt_cache_key: Ignored[str] = None
    prompt_cache_retention: Ignored[Literal["in_memory", "in-memory", "24h"]] = None
    prompt_cache_options: Ignored[CacheOptions] = None

"""What a request asks for: a prompt, how tokens are drawn, and how it may be speculated on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from adaptspec.errors import RequestError

MAX_SEED = 2**63 - 1
MAX_LOGPROBS = 20  # alternatives told per token, as at OpenAI


@dataclass(frozen=True)
class Reasoning:
    """Free text between two marks that a model may write before its answer.

    `opened`: the prompt ends with `open`, so the output begins within the reasoning. Otherwise the output may begin
    with `open`, or with the answer.
    """

    open: str
    close: str
    opened: bool = False


@dataclass(frozen=True)
class Grammar:
    """What an output must be: a JSON schema, a regular expression, or a grammar in llguidance's Lark dialect.

    `param` names it in errors. With `reasoning`, it holds for what follows the reasoning. `compiled` is the
    compiled form once there is one (see `Grammars.compile`), so that a request keeps it alive.
    """

    text: str
    syntax: Literal["json-schema", "regex", "lark"] = "json-schema"
    param: str = "response_format"
    reasoning: Reasoning | None = None
    compiled: Any = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are drawn and when to end. Defaults are OpenAI's; temperature 0 is greedy.

    `max_tokens` beyond what the context has room for ends there; 0 only reads the prompt. `top_k` 0 means all tokens.
    `seed` None: the engine gives the request a random one. `logprobs` and `prompt_logprobs` ask for the
    log-probabilities of output and prompt tokens with so many alternatives each (see `TokenLogprob`); None: none.
    `grammar` bounds what may be written; it says where the output ends, so `ignore_eos` and `min_tokens` cannot.
    """

    max_tokens: int = 128
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    grammar: Grammar | None = None

    def __post_init__(self) -> None:
        _check("max_tokens", self.max_tokens, self.max_tokens >= 0, "0 (only read the prompt) or more")
        _check("temperature", self.temperature, 0.0 <= self.temperature <= 100.0, "between 0 and 100")
        _check("top_k", self.top_k, self.top_k >= 0, "0 (all tokens) or more")
        _check("top_p", self.top_p, 0.0 < self.top_p <= 1.0, "above 0 and at most 1")
        _check("min_p", self.min_p, 0.0 <= self.min_p <= 1.0, "between 0 and 1")
        _check("presence_penalty", self.presence_penalty, -2.0 <= self.presence_penalty <= 2.0, "between -2 and 2")
        _check("frequency_penalty", self.frequency_penalty, -2.0 <= self.frequency_penalty <= 2.0, "between -2 and 2")
        _check("repetition_penalty", self.repetition_penalty, 0.0 < self.repetition_penalty <= 100.0, "above 0")
        _check("min_tokens", self.min_tokens, 0 <= self.min_tokens <= self.max_tokens, "between 0 and max_tokens")
        for name, most in (("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)):
            if most is not None:
                _check(name, most, 0 <= most <= MAX_LOGPROBS, f"between 0 and {MAX_LOGPROBS}")
        for token, bias in self.logit_bias.items():
            _check("logit_bias", bias, token >= 0 and -100.0 <= bias <= 100.0, "token ids to values of -100 to 100")
        if self.seed is not None:
            _check("seed", self.seed, -MAX_SEED <= self.seed <= MAX_SEED, "a 64-bit integer")
        if self.grammar is not None and (self.ignore_eos or self.min_tokens):
            name = "ignore_eos" if self.ignore_eos else "min_tokens"
            raise RequestError(f"{name} cannot be kept where {self.grammar.param} says when to end; leave it out", name)
        if any(not text for text in self.stop):
            raise RequestError("stop must not hold an empty string; leave it out", "stop")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


def _check(name: str, value: float, good: bool, wanted: str) -> None:
    # `good` is False for NaN as well: every comparison with NaN is.
    if not good:
        raise RequestError(f"{name} is {value}; it must be {wanted}", name)


LABEL_WORDS = "1 to 64 printable characters without space around them"


def is_label(name: str) -> bool:
    """Whether a name may stand in metrics, logs and pages: `LABEL_WORDS`."""
    return 1 <= len(name) <= 64 and name.isprintable() and name == name.strip()


@dataclass(frozen=True)
class SpeculationParams:
    """A request's own wishes: a policy by name, a task hint, a ceiling on the depth (0 opts out).

    `stop_threshold` replaces the policy's stop rule for this request: draft on while the draft gives its token at
    least this probability. It bounds drafting only, so the text stays the same. `task_detected` is for the engine: it
    has read `task` off the prompt (None: it could not tell). `provenance`: deltas are to say who drafted what.
    """

    policy: str | None = None
    task: str | None = None
    max_depth: int | None = None
    stop_threshold: float | None = None
    task_detected: bool = False
    provenance: bool = False

    def __post_init__(self) -> None:
        if self.max_depth is not None:
            _check("adaptspec.max_depth", self.max_depth, self.max_depth >= 0, "0 (no speculation) or more")
        if self.stop_threshold is not None:
            good = 0.0 <= self.stop_threshold <= 1.0
            _check("adaptspec.stop_threshold", self.stop_threshold, good, "a probability, between 0 and 1")
        if self.task is not None and not is_label(self.task):
            raise RequestError(f"adaptspec.task is {self.task[:80]!r}; it must be {LABEL_WORDS}", "adaptspec.task")


@dataclass(frozen=True)
class Request:
    """One prompt to complete. `prompt` is token ids; `id` is unique among the running requests.

    `operation` is what the client called it, in OpenTelemetry's words (`chat`, `text_completion`). `prediction` is what
    the output is expected to be, to draft from; it changes no output. `key` is the name of the client's API key. Of a
    request that is not `streamed`, there is one delta, with all of its output and its completion. `prefix_cache`: it
    shares cached tokens with other requests, but only with those of the same `cache_salt`.
    """

    id: str
    prompt: Sequence[int]
    sampling: SamplingParams = SamplingParams()
    speculation: SpeculationParams = SpeculationParams()
    operation: str = "text_completion"
    prediction: tuple[int, ...] = ()
    key: str | None = None
    streamed: bool = True
    prefix_cache: bool = True
    cache_salt: str | None = None

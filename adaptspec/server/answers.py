"""The shapes of answers to users, for `openapi.json` alone.

Handlers and dialects write what is sent, and tests hold it to these shapes. What the admin is answered is in
`admin_answers`, the live feed in `live_answers`.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


class Answer(BaseModel):
    """A JSON object with these fields and no others."""

    model_config = ConfigDict(extra="forbid")


class ErrorDetail(Answer):
    """What went wrong, what to do, and the field at fault."""

    message: str
    type: str
    param: str | None
    code: str | None


class Error(Answer):
    """A request that could not be served."""

    error: ErrorDetail


class PredictionDetails(Answer):
    """What of a prediction came true."""

    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class PromptDetails(Answer):
    """How many tokens of the prompt had been read before."""

    cached_tokens: int


class Usage(Answer):
    """Tokens read and written."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: PredictionDetails | None = None


class OwnMetrics(Answer):
    """What AdaptSpec adds to the metrics of speculative decoding."""

    policy: str
    rounds: int
    accepted_per_position: list[int]
    task: str | None
    task_detected: bool
    lossy: bool


class SpeculativeDecoding(Answer):
    """What speculation did, in vLLM's words."""

    mean_acceptance_length: float
    draft_acceptance_rate: float
    acceptance_histogram: list[int]
    num_spec_steps: int
    num_accepted_draft_tokens: int
    num_draft_tokens: int
    num_spec_tokens: int
    adaptspec: OwnMetrics


class Metrics(Answer):
    """How the answer was made."""

    speculative_decoding: SpeculativeDecoding


Finish = Literal["stop", "length", "tool_calls"]


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


class ModelDetails(Answer):
    """What AdaptSpec adds to a model's card."""

    architecture: str
    parameters: int
    policies: list[str]
    default_policy: str


class Model(Answer):
    """The model that is served."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int
    adaptspec: ModelDetails


class ModelList(Answer):
    """All models that are served."""

    object: Literal["list"]
    data: list[Model]


class PolicyCard(Answer):
    """A policy that requests may name."""

    id: str
    object: Literal["policy"]
    description: str
    default: bool


class PolicyText(PolicyCard):
    """The same, with its YAML."""

    yaml: str


class PolicyList(Answer):
    """All of them."""

    object: Literal["list"]
    data: list[PolicyCard]


class Tokens(Answer):
    """Token ids of a text or a conversation."""

    count: int
    max_model_len: int
    tokens: list[int]


class Text(Answer):
    """The text of token ids."""

    prompt: str


class Version(Answer):
    """The version of AdaptSpec."""

    version: str


class Health(Answer):
    """Whether requests are taken, and how many are in flight."""

    status: Literal["ok", "draining", "full", "dead"]
    running: int
    waiting: int


class OpenApi(BaseModel):
    """An OpenAPI description."""

    openapi: str
    info: dict[str, Any]
    paths: dict[str, Any]

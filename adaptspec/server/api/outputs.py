"""What answers of several endpoints share: usage, metrics, log-probabilities, and how an answer is written.

Models of answers write them and describe them in `openapi.json`.
"""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from typing import ClassVar, Generic, Literal, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict

from adaptspec.request import Request
from adaptspec.results import Completion, Delta, Piece, SpeculationStats
from adaptspec.server.api.fields import Json
from adaptspec.server.api.sampling import GenerationRequest, StreamOptions

Bytes = Callable[[int], bytes]  # of a token


class Answer(BaseModel):
    """A JSON object with these fields and no others."""

    model_config = ConfigDict(extra="forbid")

    def written(self) -> Json:
        """As it is sent: fields that were not given are left out."""
        return self.model_dump(exclude_unset=True)


Item = TypeVar("Item", bound=Answer)


class Listed(Answer, Generic[Item]):
    """All there are of something, in OpenAI's shape."""

    object: Literal["list"]
    data: list[Item]


class CompletionDetails(Answer):
    """What of a prediction came true, and how many tokens belong to a reasoning, its marks included."""

    accepted_prediction_tokens: int | None = None
    rejected_prediction_tokens: int | None = None
    reasoning_tokens: int | None = None


class PromptDetails(Answer):
    """Prompt tokens that were cached and not read again."""

    cached_tokens: int


class Usage(Answer):
    """Tokens read and written. `prompt_tokens_details` is left out while it is not known how many were cached."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None


class AdaptSpecMetrics(Answer):
    """What AdaptSpec adds to the metrics of speculative decoding. `policy` is the one that decided.

    `speedup` is over plain decoding, estimated; null where unknown and for several choices or prompts.
    """

    policy: str
    rounds: int
    accepted_per_position: list[int]
    task: str | None
    task_detected: bool
    lossy: bool
    nodes: int
    speedup: float | None


class SpeculativeDecoding(Answer):
    """What speculation did, in vLLM's words. Of drafts that branch, they count the tokens along the longest path."""

    mean_acceptance_length: float
    draft_acceptance_rate: float
    acceptance_histogram: list[int]
    num_spec_steps: int
    num_accepted_draft_tokens: int
    num_draft_tokens: int
    num_spec_tokens: int
    adaptspec: AdaptSpecMetrics


class Metrics(Answer):
    """How the answer was made."""

    speculative_decoding: SpeculativeDecoding


Finish = Literal["stop", "length", "tool_calls"]


def usage(completions: Sequence[Completion], choices: int = 1, reasoning: int | None = None) -> Usage:
    """Tokens read and written. A prompt counts once, however many `choices` it has.

    Completions are ordered by prompt, then by choice. `cached_tokens` are those of each first choice, since the others
    reuse its prompt.
    `reasoning`: how many of the tokens belong to reasonings; None where there can be none.
    """
    prompts, output = sum(one.prompt_tokens for one in completions), sum(len(one.tokens) for one in completions)
    counted = usage_of(prompts // choices, output, sum(one.cached_tokens for one in completions[::choices]))
    accepted = sum(one.prediction_accepted for one in completions)
    rejected = sum(one.prediction_rejected for one in completions)
    details: Json = {} if reasoning is None else {"reasoning_tokens": reasoning}
    if accepted or rejected:
        details |= {"accepted_prediction_tokens": accepted, "rejected_prediction_tokens": rejected}
    if details:
        counted.completion_tokens_details = CompletionDetails(**details)
    return counted


def usage_of(prompt: int, output: int, cached: int | None) -> Usage:
    """The usage of these numbers of tokens; `cached` is None while it is not known."""
    counted = Usage(prompt_tokens=prompt, completion_tokens=output, total_tokens=prompt + output)
    if cached is not None:
        counted.prompt_tokens_details = PromptDetails(cached_tokens=cached)
    return counted


def metrics(completions: Iterable[Completion]) -> Metrics:
    """What speculation did, summed over the prompts of a request.

    Depth changes from round to round here, so `num_spec_tokens` is the deepest count that was accepted or could be.
    `num_draft_tokens` are positions drafted for, as in vLLM, which counts token i of a draft as one at position i: the
    rate is then acceptance by depth, and means the same with trees as without. `nodes` says what was verified for it.
    """
    stats = [completion.stats for completion in completions]
    whole = SpeculationStats(
        draft_rounds=sum(one.draft_rounds for one in stats),
        drafted=sum(one.drafted for one in stats),
        accepted=sum(one.accepted for one in stats),
    )
    histogram = _columns([one.acceptance_histogram for one in stats])
    own = AdaptSpecMetrics(
        policy=stats[0].policy if stats else "",
        rounds=sum(one.rounds for one in stats),
        accepted_per_position=_columns([one.accepted_per_position for one in stats]),
        task=stats[0].task if len({one.task for one in stats}) == 1 else None,
        task_detected=any(one.task_detected for one in stats),
        lossy=any(one.lossy for one in stats),
        nodes=sum(one.nodes for one in stats),
        speedup=stats[0].speedup if len(stats) == 1 else None,
    )
    return Metrics(
        speculative_decoding=SpeculativeDecoding(
            mean_acceptance_length=whole.mean_acceptance_length,
            draft_acceptance_rate=whole.acceptance_rate,
            acceptance_histogram=histogram,
            num_spec_steps=whole.draft_rounds,
            num_accepted_draft_tokens=whole.accepted,
            num_draft_tokens=whole.drafted,
            num_spec_tokens=max(len(histogram) - 1, 0),
            adaptspec=own,
        )
    )


def _columns(rows: Sequence[tuple[int, ...]]) -> list[int]:
    return [sum(column) for column in zip_longest(*rows, fillvalue=0)]


def new_id(prefix: str) -> str:
    """The id of an answer, which also names its requests in the engine."""
    return f"{prefix}{uuid.uuid4().hex}"


class Writer(Protocol):
    """Writes the answer to a request: whole, or as the events of a stream."""

    id: str
    names_events: bool  # each event has a `type`, which the stream says as well

    def pieces(self, index: int, delta: Delta, *, first: bool) -> Iterable[Json]:
        """The events that a delta of engine request `index` adds."""

    def end(self) -> Iterable[Json]:
        """The events after the last delta."""

    def whole(self, completions: Sequence[Completion]) -> Json:
        """The answer in one object; `completions` are in the order of the engine requests."""


class ChunkWriter(ABC):
    """Writes the answer to a chat or to prompts, whose stream consists of chunks of choices."""

    names_events = False
    whole_model: ClassVar[type[Answer]]
    whole_object: ClassVar[str]  # the `object` of a whole answer
    chunk_object: ClassVar[str]  # the `object` of a chunk

    def __init__(self, identity: str, model: str, body: GenerationRequest, requests: Sequence[Request]) -> None:
        """`requests` are those of the engine, prompt by prompt and choice by choice."""
        self.id = identity
        self.reasoning_tokens: int | None = None  # so far; None where there can be none
        self._created = int(time.time())
        self._model = model
        self._options = body.stream_options or StreamOptions()
        self._warnings = body.warnings
        self._choices = body.choices
        self._count = len(requests)
        self._prompt_tokens = sum(len(request.prompt) for request in requests) // self._choices
        self._output_tokens = 0
        self._ended: dict[int, Completion] = {}

    def whole(self, completions: Sequence[Completion]) -> Json:
        choices = [self.choice(index, completion) for index, completion in enumerate(completions)]
        envelope = self._envelope(self.whole_object, choices)
        return self.whole_model.model_validate(envelope | self._totals(completions)).written()

    @abstractmethod
    def choice(self, index: int, completion: Completion) -> Answer:
        """A whole answer to one prompt."""

    @abstractmethod
    def chunks(self, index: int, delta: Delta, *, first: bool) -> Iterable[Json]:
        """What a delta adds to choice `index`; with the completion, the last chunk has the finish reason."""

    def provenance(self, delta: Delta, choice: Json) -> Json:
        """Which drafter proposed which words of a chunk, token by token, for requests that asked.

        Their texts add up to that of the chunk. It is called for the chunks of a delta in their order.
        """
        if delta.pieces is None or not choice.get("text"):
            return {}
        return pieces_by_drafter(delta.pieces)

    def pieces(self, index: int, delta: Delta, *, first: bool) -> Iterable[Json]:
        """The metrics and warnings travel with the usage if that was asked for, else with the last finish reason."""
        options = self._options
        self._output_tokens += len(delta.tokens)
        if delta.completion is not None:
            self._ended[index] = delta.completion
        choices = list(self.chunks(index, delta, first=first))
        extra: Json = {"usage": None} if options.include_usage else {}
        for number, choice in enumerate(choices, start=1):
            if options.include_usage and options.continuous_usage_stats:
                # The chunk that opens a message has none of its tokens.
                opens = "role" in choice.get("delta", {})
                output = self._output_tokens - len(delta.tokens) * opens
                extra = {"usage": usage_of(self._prompt_tokens, output, self._cached_tokens()).written()}
            is_last = number == len(choices) and len(self._ended) == self._count
            if is_last and not options.include_usage:
                extra |= {"metrics": metrics(self._ended.values()).written()} | self._warnings.written()
            yield self._envelope(self.chunk_object, [choice]) | extra | self.provenance(delta, choice)

    def end(self) -> Iterable[Json]:
        if self._options.include_usage:
            totals = self._totals([self._ended[index] for index in range(self._count)])
            written = {name: one.written() if isinstance(one, Answer) else one for name, one in totals.items()}
            yield self._envelope(self.chunk_object, []) | written

    def _totals(self, completions: Sequence[Completion]) -> Json:
        counted = usage(completions, self._choices, self.reasoning_tokens)
        return {"usage": counted, "metrics": metrics(completions)} | self._warnings.written()

    def _cached_tokens(self) -> int | None:
        """Cached prompt tokens of the requests; None until the first choice of each prompt has ended."""
        first = range(0, self._count, self._choices)
        if not self._ended.keys() >= set(first):
            return None
        return sum(self._ended[index].cached_tokens for index in first)

    def _envelope(self, kind: str, choices: Sequence[object]) -> Json:
        return {"id": self.id, "object": kind, "created": self._created, "model": self._model, "choices": choices}


def pieces_by_drafter(pieces: Iterable[Piece]) -> Json:
    """The provenance of a chunk's words."""
    return {"adaptspec": {"provenance": [{"text": one.text, "drafter": one.drafter} for one in pieces]}}

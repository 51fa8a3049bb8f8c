"""Models of answers, which write them and describe them in `openapi.json`: here what several endpoints share."""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from itertools import zip_longest
from typing import Any, ClassVar, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict

from adaptspec.request import Request
from adaptspec.results import Completion, Delta, Piece, SpeculationStats
from adaptspec.server.api.generation_body import StreamOptions
from adaptspec.server.api.warnings import Warnings

Json = dict[str, Any]
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


class OwnMetrics(Answer):
    """What AdaptSpec adds to the metrics of speculative decoding. `policy` is the one that decided."""

    policy: str
    rounds: int
    accepted_per_position: list[int]
    task: str | None
    task_detected: bool
    lossy: bool
    nodes: int


class SpeculativeDecoding(Answer):
    """What speculation did, in vLLM's words. Of drafts that branch, they count the tokens along the longest path."""

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
    own = OwnMetrics(
        policy=stats[0].policy if stats else "",
        rounds=sum(one.rounds for one in stats),
        accepted_per_position=_columns([one.accepted_per_position for one in stats]),
        task=stats[0].task if len({one.task for one in stats}) == 1 else None,
        task_detected=any(one.task_detected for one in stats),
        lossy=any(one.lossy for one in stats),
        nodes=sum(one.nodes for one in stats),
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


class Reply(ABC):
    """One answer in the making, of a chat or of completions: what all its parts share."""

    prefix: ClassVar[str]  # of ids
    whole_model: ClassVar[type[Answer]]
    whole_object: ClassVar[str]  # the `object` of a whole answer
    chunk_object: ClassVar[str]  # that of a piece

    def __init__(self, model: str, choices: int, warnings: Warnings) -> None:
        """`choices` answers go to each prompt, in a row. The answer, or its last chunk, lists the `warnings`."""
        self.id = f"{self.prefix}-{uuid.uuid4().hex}"  # also names its requests in the engine
        self.created = int(time.time())
        self.model = model
        self.choices = choices
        self.warnings = warnings
        self.reasoning_tokens: int | None = None  # so far; None where there can be none

    def whole(self, completions: Sequence[Completion]) -> Json:
        choices = [self.choice(index, completion) for index, completion in enumerate(completions)]
        counted = usage(completions, self.choices, self.reasoning_tokens)
        totals = {"usage": counted, "metrics": metrics(completions)} | self.warnings.written()
        return self.whole_model.model_validate(self._envelope(self.whole_object, choices) | totals).written()

    @abstractmethod
    def choice(self, index: int, completion: Completion) -> Answer:
        """A whole answer to one prompt."""

    @abstractmethod
    def chunks(self, index: int, delta: Delta, *, first: bool) -> Iterable[Json]:
        """What a piece adds to choice `index`; where it carries the completion, the last of them tells the end."""

    def provenance(self, delta: Delta, choice: Json) -> Json:
        """Who drafted which words of a chunk, token by token, for requests that asked.

        Their texts add up to that of the chunk. It is called for the chunks of a delta in their order.
        """
        if delta.pieces is None or not (choice.get("text") or choice.get("delta", {}).get("content")):
            return {}
        return shown_pieces(delta.pieces)

    async def events(
        self, deltas: AsyncGenerator[tuple[int, Delta], None], requests: Sequence[Request], options: StreamOptions
    ) -> AsyncGenerator[Json, None]:
        """The answer in pieces. `deltas` belong to the `requests`; nothing comes before the first delta.

        The metrics and warnings travel with the usage if that was asked for, else with the last ending.
        """
        opened: set[int] = set()
        ended: dict[int, Completion] = {}
        prompt, output = sum(len(request.prompt) for request in requests) // self.choices, 0
        async with aclosing(deltas):
            async for index, delta in deltas:
                output += len(delta.tokens)
                if delta.completion is not None:
                    ended[index] = delta.completion
                written = list(self.chunks(index, delta, first=index not in opened))
                opened.add(index)
                extra: Json = {"usage": None} if options.include_usage else {}
                for place, choice in enumerate(written, start=1):
                    if options.include_usage and options.continuous_usage_stats:
                        # The chunk that opens a message has none of its tokens.
                        opens = "role" in choice.get("delta", {})
                        completion_tokens = output - len(delta.tokens) * opens
                        cached = self._cached(ended, len(requests))
                        extra = {"usage": usage_of(prompt, completion_tokens, cached).written()}
                    if place == len(written) and len(ended) == len(requests) and not options.include_usage:
                        extra |= {"metrics": metrics(ended.values()).written()} | self.warnings.written()
                    yield self._envelope(self.chunk_object, [choice]) | extra | self.provenance(delta, choice)
        if options.include_usage:
            completions = [ended[index] for index in range(len(requests))]
            counted, made = usage(completions, self.choices, self.reasoning_tokens), metrics(completions)
            last = {"usage": counted.written(), "metrics": made.written()} | self.warnings.written()
            yield self._envelope(self.chunk_object, []) | last

    def _cached(self, ended: Mapping[int, Completion], count: int) -> int | None:
        """Cached prompt tokens of `count` requests; None until the first choice of each prompt has ended."""
        first = range(0, count, self.choices)
        return sum(ended[index].cached_tokens for index in first) if ended.keys() >= set(first) else None

    def _envelope(self, kind: str, choices: Sequence[object]) -> Json:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}


def shown_pieces(pieces: Iterable[Piece]) -> Json:
    """Who drafted which words, as a chunk says it."""
    return {"adaptspec": {"provenance": [{"text": one.text, "drafter": one.drafter} for one in pieces]}}

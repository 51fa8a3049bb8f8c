"""Answers on the wire, whole and in pieces: envelope, usage, and what speculation did. Knows no HTTP."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Protocol

from adaptspec.errors import EngineError
from adaptspec.server.errors import DrainingError
from adaptspec.server.wire import StreamOptions
from adaptspec.types import Completion, Delta, FinishReason, Request, SpeculationStats

Json = dict[str, Any]


class Dialect(Protocol):
    """How one endpoint writes its choices."""

    @property
    def id_prefix(self) -> str:
        """What ids start with."""

    @property
    def whole_object(self) -> str:
        """The `object` of a whole answer."""

    @property
    def chunk_object(self) -> str:
        """The `object` of a piece."""

    def choice(self, index: int, completion: Completion) -> Json:
        """A whole answer."""

    def chunks(self, index: int, delta: Delta, *, first: bool) -> Iterable[Json]:
        """What a piece of an answer adds; its end is the last of the piece with the completion."""


@dataclass(frozen=True)
class Reply:
    """One answer in the making: what all its parts share. `choices` answers go to each prompt, in a row."""

    dialect: Dialect
    model: str
    choices: int = 1
    created: int = field(default_factory=lambda: int(time.time()))
    number: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def id(self) -> str:
        """Our own id of the answer; also names its requests in the engine."""
        return f"{self.dialect.id_prefix}-{self.number}"

    def whole(self, completions: Sequence[Completion]) -> Json:
        """The answer in one object. Raises EngineError or DrainingError if one has failed."""
        for completion in completions:
            ensure_complete(completion)
        choices = [self.dialect.choice(index, completion) for index, completion in enumerate(completions)]
        body = self._envelope(self.dialect.whole_object, choices)
        return body | {"usage": usage(completions, self.choices), "metrics": metrics(completions)}

    async def chunks(
        self,
        deltas: AsyncGenerator[tuple[int, Delta], None],
        requests: Sequence[Request],
        options: StreamOptions = StreamOptions(),  # noqa: B008 (frozen)
    ) -> AsyncGenerator[Json, None]:
        """The answer in pieces. `deltas` belong to the `requests`; nothing comes before the first delta.

        The metrics travel with the usage if that was asked for, else with the last ending.
        """
        opened: set[int] = set()
        completions: dict[int, Completion] = {}
        prompt, output = sum(len(request.prompt) for request in requests) // self.choices, 0
        kind = self.dialect.chunk_object
        async with aclosing(deltas):
            async for index, delta in deltas:
                output += len(delta.tokens)
                if delta.completion is not None:
                    completions[index] = ensure_complete(delta.completion)
                written = list(self.dialect.chunks(index, delta, first=index not in opened))
                opened.add(index)
                extra, told = _beside(options, prompt, output), provenance(delta)
                for place, choice in enumerate(written, start=1):
                    if place == len(written) and len(completions) == len(requests) and not options.include_usage:
                        extra = extra | {"metrics": metrics(completions.values())}
                    yield self._envelope(kind, [choice]) | extra | (told if _words(choice) else {})
        if options.include_usage:
            ended = list(completions.values())
            told = {"usage": usage(ended, self.choices), "metrics": metrics(ended)}
            yield self._envelope(kind, []) | told

    def _envelope(self, kind: str, choices: list[Json]) -> Json:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}


def ensure_complete(completion: Completion) -> Completion:
    """The completion itself. Raises EngineError or DrainingError if the client has no answer."""
    if completion.finish is FinishReason.ERROR:
        raise EngineError(f"the engine failed on this request: {completion.error or 'no details'}; send it again")
    if completion.finish is FinishReason.ABORT:
        raise DrainingError("the server gave up on this request because it is shutting down; send it again")
    return completion


def provenance(delta: Delta) -> Json:
    """Who drafted which words of a piece, token by token, for requests that asked: its texts add up to the piece's."""
    if delta.pieces is None:
        return {}
    return {"adaptspec": {"provenance": [{"text": one.text, "drafter": one.drafter} for one in delta.pieces]}}


def _words(choice: Json) -> bool:
    """Whether a choice of a chunk has text of the answer."""
    return bool(choice.get("text") or choice.get("delta", {}).get("content"))


def _beside(options: StreamOptions, prompt: int, output: int) -> Json:
    """What a piece says of usage."""
    if options.continuous_usage_stats:
        return {"usage": _counted(prompt, output)}
    return {"usage": None} if options.include_usage else {}


def usage(completions: Iterable[Completion], choices: int = 1) -> Json:
    """Tokens read and written, in OpenAI's shape: a prompt counts once, however many `choices` are answers to it."""
    ended = list(completions)
    prompt = sum(completion.prompt_tokens for completion in ended) // choices
    output = sum(len(completion.tokens) for completion in ended)
    counted = _counted(prompt, output)
    accepted = sum(completion.prediction_accepted for completion in ended)
    rejected = sum(completion.prediction_rejected for completion in ended)
    if accepted or rejected:
        counted["completion_tokens_details"] = {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": rejected,
        }
    return counted


def _counted(prompt: int, output: int) -> Json:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": 0},  # no prompt is kept for another request
    }


def metrics(completions: Iterable[Completion]) -> Json:
    """What speculation did, in vLLM's shape, summed over the prompts of a request; our additions are under a key.

    Depth changes from round to round here, so `num_spec_tokens` is the deepest count that was accepted or could be.
    """
    stats = summed([completion.stats for completion in completions])
    return {
        "speculative_decoding": {
            "mean_acceptance_length": stats.mean_acceptance_length,
            "draft_acceptance_rate": stats.acceptance_rate,
            "acceptance_histogram": list(stats.acceptance_histogram),
            "num_spec_steps": stats.draft_rounds,
            "num_accepted_draft_tokens": stats.accepted,
            "num_draft_tokens": stats.drafted,
            "num_spec_tokens": max(len(stats.acceptance_histogram) - 1, 0),
            "adaptspec": {
                "policy": stats.policy,
                "rounds": stats.rounds,
                "accepted_per_position": list(stats.accepted_per_position),
                "task": stats.task,
                "task_detected": stats.task_detected,
                "lossy": stats.lossy,
            },
        }
    }


def summed(stats: Sequence[SpeculationStats]) -> SpeculationStats:
    """Statistics of several requests as if they were one."""
    return SpeculationStats(
        policy=stats[0].policy if stats else "",
        rounds=sum(one.rounds for one in stats),
        draft_rounds=sum(one.draft_rounds for one in stats),
        drafted=sum(one.drafted for one in stats),
        accepted=sum(one.accepted for one in stats),
        accepted_per_position=_columns([one.accepted_per_position for one in stats]),
        acceptance_histogram=_columns([one.acceptance_histogram for one in stats]),
        task=stats[0].task if len({one.task for one in stats}) == 1 else None,
        task_detected=any(one.task_detected for one in stats),
        lossy=any(one.lossy for one in stats),
    )


def _columns(rows: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(sum(column) for column in zip_longest(*rows, fillvalue=0))

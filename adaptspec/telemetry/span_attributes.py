"""What spans say of a request, as OpenTelemetry attributes.

Names of OpenTelemetry's GenAI conventions and those that vLLM and SGLang emit are written out here as strings, ours
begin with `adaptspec.`. Knows stories and names; it makes no spans.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from adaptspec.control.labels import OTHER
from adaptspec.telemetry.server_histograms import PROVIDER
from adaptspec.telemetry.request_record import Story
from adaptspec.types import Completion, Reason, Request, Timings

Value = str | bool | int | float | Sequence[str] | Sequence[int] | Sequence[float]
Attributes = dict[str, Value]


def of_model(operation: str, model: str) -> Attributes:
    """What is known before anything of a request has been read."""
    return {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.system": PROVIDER,
        "gen_ai.request.model": model,
        "gen_ai.response.model": model,
    }


def of_request(request: Request, answer: str) -> Attributes:
    """What was asked for; `answer` is the id that the client sees."""
    sampling, wishes = request.sampling, request.speculation
    said: Attributes = {
        "gen_ai.request.id": answer,
        "gen_ai.response.id": answer,
        "gen_ai.request.max_tokens": sampling.max_tokens,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.top_k": sampling.top_k,
        "gen_ai.request.presence_penalty": sampling.presence_penalty,
        "gen_ai.request.frequency_penalty": sampling.frequency_penalty,
    }
    if sampling.seed is not None:
        said["gen_ai.request.seed"] = sampling.seed
    if sampling.stop:
        said["gen_ai.request.stop_sequences"] = list(sampling.stop)
    if wishes.max_depth is not None:
        said["adaptspec.request.max_depth"] = wishes.max_depth
    return said


def of_answers(completions: Sequence[Completion]) -> Attributes:
    """What the answers to one HTTP request came to, together; times are the longest of any."""
    prompt, output = (
        sum(counts) for counts in zip(*((one.prompt_tokens, len(one.tokens)) for one in completions), strict=True)
    )
    said: Attributes = {
        "gen_ai.usage.input_tokens": prompt,
        "gen_ai.usage.output_tokens": output,
        "gen_ai.usage.prompt_tokens": prompt,
        "gen_ai.usage.completion_tokens": output,
        "gen_ai.response.finish_reasons": [one.finish.value for one in completions],
        "adaptspec.spec.drafted_tokens": sum(one.stats.drafted for one in completions),
        "adaptspec.spec.accepted_tokens": sum(one.stats.accepted for one in completions),
        "adaptspec.spec.rounds": sum(one.stats.rounds for one in completions),
        "adaptspec.policy": completions[0].stats.policy,
        "adaptspec.lossy": any(one.stats.lossy for one in completions),
    }
    if completions[0].stats.task is not None:
        said["adaptspec.task"] = completions[0].stats.task
    for name in _LATENCIES:
        known = [times[name] for one in completions if name in (times := latencies(one.timings))]
        if known:
            said[name] = max(known)
    return said


_LATENCIES = (
    "gen_ai.latency.time_in_queue",
    "gen_ai.latency.time_in_model_prefill",
    "gen_ai.latency.time_to_first_token",
    "gen_ai.latency.time_in_model_decode",
    "gen_ai.latency.time_in_model_inference",
    "gen_ai.latency.e2e",
)


def latencies(timings: Timings) -> dict[str, float]:
    """Seconds, under the names that vLLM and SGLang use; what was never reached is left out."""
    arrived, admitted, first, finished = timings.arrived, timings.admitted, timings.first_token, timings.finished
    known = {"gen_ai.latency.e2e": finished - arrived}
    known["gen_ai.latency.time_in_queue"] = (finished if admitted is None else admitted) - arrived
    if admitted is not None:
        known["gen_ai.latency.time_in_model_inference"] = finished - admitted
    if admitted is not None and first is not None:
        known["gen_ai.latency.time_to_first_token"] = first - arrived
        known["gen_ai.latency.time_in_model_prefill"] = first - admitted
        known["gen_ai.latency.time_in_model_decode"] = finished - first
    return known


def of_decoding(story: Story, drafters: Sequence[str]) -> Attributes:
    """What was decided round by round, from what, and what came of it.

    `adaptspec.goodput.*` are tokens per second of all rows of this request's rounds: what was estimated is said of
    whole rounds.
    """
    said = _rounds(story, drafters) | _context(story)
    if story.completion is not None:
        stats = story.completion.stats
        said |= {
            "adaptspec.policy": stats.policy,
            "adaptspec.spec.drafted_tokens": stats.drafted,
            "adaptspec.spec.accepted_tokens": stats.accepted,
            "adaptspec.spec.mean_acceptance_length": stats.mean_acceptance_length,
            "adaptspec.lossy": stats.lossy,
        }
    if story.expected_seconds:
        said["adaptspec.goodput.estimated"] = story.expected_tokens / story.expected_seconds
        said["adaptspec.goodput.realised"] = story.came_tokens / story.expected_seconds
        said["adaptspec.spec.expected_accepted_tokens"] = story.expected_accepted
    return said


def _rounds(story: Story, drafters: Sequence[str]) -> Attributes:
    said: Attributes = {
        "adaptspec.spec.rounds": story.rounds,
        "adaptspec.spec.drafted": story.drafted,
        "adaptspec.spec.accepted": story.accepted,
        "adaptspec.spec.tier": story.tiers,
        "adaptspec.spec.reason": [reason_name(code) for code in story.reasons],
        "adaptspec.spec.drafter": [
            drafters[which] if depth else "" for which, depth in zip(story.drafters, story.tiers, strict=True)
        ],
        "adaptspec.spec.truncated": story.truncated,
        "adaptspec.spec.switches": story.switches,
        "adaptspec.events.dropped": story.facts_dropped,
    }
    counts = story.reason_counts.most_common()
    said["adaptspec.decision.reasons"] = [reason_name(code) for code, _ in counts]
    said["adaptspec.decision.reason_counts"] = [count for _, count in counts]
    if story.tiers:
        depth, which = story.tiers[-1], story.drafters[-1]
        said["adaptspec.decision.tier"] = depth
        said["adaptspec.decision.arm"] = f"{drafters[which]} at {depth}" if depth else "off"
    if story.arms:
        said["adaptspec.decision.arms"] = story.arms
        said["adaptspec.decision.propensities"] = story.propensities
        said["adaptspec.decision.propensity"] = story.propensities[-1]
    return said


def _context(story: Story) -> Attributes:
    """The features that choices may rest on."""
    request, rounds = story.request, max(story.rounds, 1)
    said: Attributes = {
        "adaptspec.context.task": request.speculation.task or OTHER,
        "adaptspec.context.batch_size": story.batch_sizes / rounds,
        "adaptspec.context.prompt_tokens": len(request.prompt),
        "adaptspec.context.temperature": request.sampling.temperature,
    }
    if story.scored:
        said["adaptspec.context.entropy"] = story.entropy / story.scored
        said["adaptspec.context.confidence"] = story.confidence / story.scored
    return said


def of_round(story: Story, index: int, drafters: Sequence[str]) -> Attributes:
    """One round of a request."""
    depth, which = story.tiers[index], story.drafters[index]
    return {
        "adaptspec.spec.tier": depth,
        "adaptspec.spec.drafted": story.drafted[index],
        "adaptspec.spec.accepted": story.accepted[index],
        "adaptspec.spec.reason": reason_name(story.reasons[index]),
        "adaptspec.spec.drafter": drafters[which] if depth else "",
    }


def messages(texts: Sequence[Mapping[str, str]]) -> str:
    """Roles and contents in the shape of `gen_ai.input.messages` and `gen_ai.output.messages`.

    Of the latter, readers need a `finish_reason` as well, and show none of those that have none.
    """
    shaped = []
    for one in texts:
        rest = {name: value for name, value in one.items() if name != "content"}
        shaped.append({**rest, "parts": [{"type": "text", "content": one["content"]}]})
    return json.dumps(shaped, ensure_ascii=False)


def reason_name(code: int) -> str:
    """A reason as metrics and journals call it."""
    return Reason(code).name.lower()

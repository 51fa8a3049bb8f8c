"""Attributes of the spans of a request.

Names of OpenTelemetry's GenAI conventions, and of vLLM and SGLang where these have none, are written out as strings;
our own begin with `adaptspec.`. A root span has at most 25 attributes, so that a viewer shows them on one screen.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields

from adaptspec.decision import Reason
from adaptspec.request import Request, SamplingParams
from adaptspec.results import Timings
from adaptspec.telemetry.requests import LoggedRequest, RequestRound
from adaptspec.telemetry.speedup import Estimate
from adaptspec.telemetry.summary import sentence

PROVIDER = "adaptspec"
Value = str | bool | int | float | Sequence[str] | Sequence[int] | Sequence[float]
Attributes = dict[str, Value]

_SENTENCES = 4  # of an HTTP request that became many
_SAMPLING = ("top_p", "top_k", "presence_penalty", "frequency_penalty", "seed")
_DEFAULTS = {one.name: one.default for one in fields(SamplingParams)}


def model_attributes(operation: str, model: str) -> Attributes:
    """Known before the body of a request has been read."""
    return {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": model,
    }


def request_attributes(request: Request, answer_id: str) -> Attributes:
    """What the client asked for; `answer_id` is the id that it sees."""
    return {
        "gen_ai.response.id": answer_id,
        "gen_ai.request.max_tokens": request.sampling.max_tokens,
        "gen_ai.request.temperature": request.sampling.temperature,
    }


def answer_attributes(logged: Sequence[LoggedRequest], *, content: bool) -> Attributes:
    """What came of all requests of one HTTP request: tokens are sums, times are the longest.

    The summary is the output that viewers show first, unless `content` is exported. `cache_read` is set only if tokens
    were cached: inside another engine the number is unknown.
    """
    completions = [one.completion for one in logged if one.completion is not None]
    summary = " ".join(sentence(one) for one in logged[:_SENTENCES])
    stats = [one.stats for one in completions]
    attributes: Attributes = {
        "gen_ai.usage.input_tokens": sum(one.prompt_tokens for one in completions),
        "gen_ai.usage.output_tokens": sum(len(one.tokens) for one in completions),
        "gen_ai.response.finish_reasons": [one.finish.value for one in completions],
        "adaptspec.policy": stats[0].policy,
        "adaptspec.spec.drafted_tokens": sum(one.drafted for one in stats),
        "adaptspec.spec.accepted_tokens": sum(one.accepted for one in stats),
        "adaptspec.spec.rounds": sum(one.rounds for one in stats),
        "adaptspec.summary": summary,
    }
    if cached := sum(one.cached_tokens for one in completions):
        attributes["gen_ai.usage.cache_read.input_tokens"] = cached
    if stats[0].task is not None:
        attributes["adaptspec.task"] = stats[0].task
    if len(logged) == 1:
        attributes |= speedup_attributes(logged[0].speedup)
    if content:
        answers = [{"role": "assistant", "content": one.text, "finish_reason": one.finish.value} for one in completions]
        attributes["gen_ai.output.messages"] = messages(answers)
    else:
        attributes |= _shown(summary)
    times = [latencies(one.timings) for one in completions]
    return attributes | {name: max(one[name] for one in times if name in one) for name in set().union(*times)}


def latencies(timings: Timings) -> dict[str, float]:
    """Seconds, under the names that vLLM and SGLang use; what was never reached is left out."""
    arrived, admitted, first = timings.arrived, timings.admitted, timings.first_token
    known = {"gen_ai.latency.time_in_queue": (timings.finished if admitted is None else admitted) - arrived}
    if first is not None:
        known["gen_ai.latency.time_to_first_token"] = first - arrived
    return known


def speedup_attributes(estimate: Estimate | None) -> Attributes:
    """The gain over plain decoding; nothing if it is unknown."""
    if estimate is None:
        return {}
    return {
        "adaptspec.speedup": round(estimate.value, 3),
        "adaptspec.speedup_low": round(estimate.low, 3),
        "adaptspec.speedup_high": round(estimate.high, 3),
    }


def decode_attributes(logged: LoggedRequest) -> Attributes:
    """Decisions and outcomes of a request, round by round as JSON arrays, and in sums.

    OpenTelemetry's own arrays would take a line per element in viewers.
    """
    rounds, sums = logged.rounds, logged.sums
    attributes: Attributes = {
        **_shown(sentence(logged)),
        "adaptspec.spec.rounds": sums.rows,
        "adaptspec.spec.drafted_tokens": sums.drafted,
        "adaptspec.spec.accepted_tokens": sums.accepted,
        "adaptspec.spec.verified_nodes": sums.nodes,
        "adaptspec.spec.depth": json.dumps([one.depth for one in rounds]),
        "adaptspec.spec.drafted": json.dumps([one.drafted for one in rounds]),
        "adaptspec.spec.accepted": json.dumps([one.accepted for one in rounds]),
        "adaptspec.spec.entropy": json.dumps([_rounded(one.entropy) for one in rounds]),
        "adaptspec.spec.reason": json.dumps([Reason(one.reason).label for one in rounds]),
        "adaptspec.spec.drafter": json.dumps([_drafter(logged, one) for one in rounds]),
        "adaptspec.spec.truncated": sums.rows > len(rounds),
        **_goodput(logged),
        **speedup_attributes(logged.speedup),
        **_unusual(logged.request),
    }
    if sums.expected_accepted:
        attributes["adaptspec.spec.expected_accepted_tokens"] = round(sums.expected_accepted, 2)
    if logged.completion is not None:
        attributes["adaptspec.policy"] = logged.completion.stats.policy
        attributes["adaptspec.output_tokens"] = len(logged.completion.tokens)
        if logged.completion.stats.lossy:
            attributes["adaptspec.lossy"] = True
    return attributes


def round_attributes(logged: LoggedRequest, one: RequestRound) -> Attributes:
    """One round of a request; `adaptspec.round` is its number in the journal."""
    attributes: Attributes = {
        "adaptspec.round": one.number,
        "adaptspec.rows": one.rows,
        "adaptspec.spec.depth": one.depth,
        "adaptspec.spec.drafted": one.drafted,
        "adaptspec.spec.accepted": one.accepted,
        "adaptspec.spec.reason": Reason(one.reason).label,
        "adaptspec.spec.drafter": _drafter(logged, one),
        "adaptspec.context_tokens": one.context,
    }
    known = {"entropy": one.entropy, "confidence": one.confidence, "expected_accepted_tokens": one.expected}
    attributes |= {f"adaptspec.spec.{name}": value for name, value in known.items() if not math.isnan(value)}
    if one.nodes > one.drafted:
        attributes["adaptspec.spec.verified_nodes"] = one.nodes
    if one.prefill_tokens:
        attributes["adaptspec.prefill_tokens"] = one.prefill_tokens
    return attributes


def messages(texts: Sequence[Mapping[str, str]]) -> str:
    """Roles and contents in the shape of `gen_ai.input.messages` and `gen_ai.output.messages`.

    Output messages need a `finish_reason`: Phoenix shows none without.
    """
    shaped = [{**one, "parts": [{"type": "text", "content": one["content"]}]} for one in texts]
    for one in shaped:
        del one["content"]
    return json.dumps(shaped, ensure_ascii=False)


def _shown(text: str) -> Attributes:
    """A text that viewers of language models (OpenInference) show first, as the output of a span."""
    return {"output.value": text, "output.mime_type": "text/plain"}


def _goodput(logged: LoggedRequest) -> Attributes:
    """Tokens per second of the request, and what its policy expected of the same rounds; prompts are left out."""
    rounds = [one for one in logged.rounds if not one.prefill_tokens]
    seconds = sum(one.seconds for one in rounds)
    if not seconds:
        return {}
    measured = sum(one.emitted for one in rounds) / seconds
    attributes: Attributes = {"adaptspec.goodput.measured": round(measured, 2)}
    forecast = logged.sums.plain_decoding + logged.sums.drafting
    if forecast.expected and forecast.emitted:
        attributes["adaptspec.goodput.expected"] = round(measured * forecast.expected / forecast.emitted, 2)
    return attributes


def _unusual(request: Request) -> Attributes:
    """What a request asked for beyond the defaults."""
    sampling, speculation = request.sampling, request.speculation
    attributes: Attributes = {
        f"gen_ai.request.{name}": getattr(sampling, name)
        for name in _SAMPLING
        if getattr(sampling, name) != _DEFAULTS[name]
    }
    if sampling.stop:
        attributes["gen_ai.request.stop_sequences"] = list(sampling.stop)
    if speculation.max_depth is not None:
        attributes["adaptspec.request.max_depth"] = speculation.max_depth
    return attributes


def _drafter(logged: LoggedRequest, one: RequestRound) -> str:
    return logged.drafter_name(one.drafter) if one.depth else ""


def _rounded(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 3)

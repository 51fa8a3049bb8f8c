"""What the spans of a request say, as OpenTelemetry attributes and in words.

Names of OpenTelemetry's GenAI conventions and those that vLLM and SGLang emit are written out here as strings; ours
begin with `adaptspec.`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence

from adaptspec.control.tasks import OTHER
from adaptspec.decision import REASON_WORDS, Reason
from adaptspec.quantity import quantity
from adaptspec.request import Request
from adaptspec.results import Completion, Timings
from adaptspec.telemetry.metrics import PROVIDER
from adaptspec.telemetry.request_record import Forecast, RequestRecord, RoundHistory, RoundSums, RowRound, drafter_name

_NAMES = {reason.value: reason.name.lower() for reason in Reason}
SAMPLING = ("max_tokens", "temperature", "top_p", "top_k", "presence_penalty", "frequency_penalty")
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


def of_request(request: Request, answer: str, told: Sequence[str] = SAMPLING) -> Attributes:
    """What was asked for; `answer` is the id that the client sees. Of sampling, what is `told`."""
    sampling, wishes = request.sampling, request.speculation
    said: Attributes = {
        "gen_ai.request.id": answer,
        "gen_ai.response.id": answer,
        **{f"gen_ai.request.{name}": getattr(sampling, name) for name in told},
    }
    if sampling.seed is not None:
        said["gen_ai.request.seed"] = sampling.seed
    if sampling.stop:
        said["gen_ai.request.stop_sequences"] = list(sampling.stop)
    if wishes.max_depth is not None:
        said["adaptspec.request.max_depth"] = wishes.max_depth
    return said


def of_answers(completions: Sequence[Completion]) -> Attributes:
    """What the answers to one HTTP request came to, together; times are the longest of any.

    `cache_read` is reported only if tokens were cached: inside another engine the number is unknown.
    """
    prompt, output = sum(one.prompt_tokens for one in completions), sum(len(one.tokens) for one in completions)
    cached = sum(one.cached_tokens for one in completions)
    said: Attributes = {
        "gen_ai.usage.input_tokens": prompt,
        "gen_ai.usage.output_tokens": output,
        "gen_ai.usage.prompt_tokens": prompt,
        "gen_ai.usage.completion_tokens": output,
        "gen_ai.response.finish_reasons": [one.finish.value for one in completions],
        "adaptspec.spec.drafted_tokens": sum(one.stats.drafted for one in completions),
        "adaptspec.spec.accepted_tokens": sum(one.stats.accepted for one in completions),
        "adaptspec.spec.drafted_nodes": sum(one.stats.nodes for one in completions),
        "adaptspec.spec.rounds": sum(one.stats.rounds for one in completions),
        "adaptspec.policy": completions[0].stats.policy,
        "adaptspec.lossy": any(one.stats.lossy for one in completions),
    }
    if cached:
        said["gen_ai.usage.cache_read.input_tokens"] = cached
    if completions[0].stats.task is not None:
        said["adaptspec.task"] = completions[0].stats.task
    times = [latencies(one.timings) for one in completions]
    return said | {name: max(one[name] for one in times if name in one) for name in set().union(*times)}


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


def of_decoding(record: RequestRecord, drafters: Sequence[str]) -> Attributes:
    """What was decided round by round, from what, and what came of it.

    `adaptspec.goodput.*` are tokens per second of all rows of this request's rounds: what was estimated is said of
    whole rounds.
    """
    history = record.history
    said = _rounds(history, drafters) | _context(record) | _forecast(history.sums)
    said["adaptspec.summary"] = summary(record, drafters)
    if record.completion is not None:
        stats = record.completion.stats
        said |= {
            "adaptspec.policy": stats.policy,
            "adaptspec.spec.drafted_tokens": stats.drafted,
            "adaptspec.spec.accepted_tokens": stats.accepted,
            "adaptspec.spec.drafted_nodes": stats.nodes,
            "adaptspec.spec.mean_acceptance_length": stats.mean_acceptance_length,
            "adaptspec.lossy": stats.lossy,
        }
    return said


def _rounds(history: RoundHistory, drafters: Sequence[str]) -> Attributes:
    """Arrays are attributes of JSON: of OpenTelemetry's own, viewers make a row per element.

    Nodes and paths are told where a round branched; a path is null in rounds of chains.
    """
    rounds = history.columns
    depths, reasons, who = rounds["depth"], rounds["reason"], rounds["drafter"]
    used = [drafter_name(drafters, which) if depth else "" for which, depth in zip(who, depths, strict=True)]
    said: Attributes = {
        "adaptspec.spec.rounds": history.sums.rounds,
        "adaptspec.spec.drafted": json.dumps(rounds["drafted"]),
        "adaptspec.spec.accepted": json.dumps(rounds["accepted"]),
        "adaptspec.spec.tier": json.dumps(depths),
        "adaptspec.spec.reason": json.dumps([_NAMES[code] for code in reasons]),
        "adaptspec.spec.drafter": json.dumps(used),
        "adaptspec.spec.truncated": history.truncated,
        "adaptspec.spec.switches": history.switches,
        "adaptspec.events.dropped": history.events_dropped,
    }
    if any(path is not None for path in rounds["path"]):
        said["adaptspec.spec.nodes"] = json.dumps(rounds["nodes"])
        said["adaptspec.spec.path"] = json.dumps(rounds["path"])
    counts = history.sums.reasons.most_common()
    said["adaptspec.decision.reasons"] = [_NAMES[code] for code, _ in counts]
    said["adaptspec.decision.reason_counts"] = [count for _, count in counts]
    if depths:
        said["adaptspec.decision.tier"] = depths[-1]
        said["adaptspec.decision.arm"] = _choice(drafters, who[-1], depths[-1])
    return said


def _forecast(sums: RoundSums) -> Attributes:
    """What was expected, and of what was rejected in most of the time, too."""
    drafting, plain = sums.drafting, sums.plain
    seconds = drafting.seconds + plain.seconds
    said: Attributes = {}
    if seconds:
        said["adaptspec.goodput.estimated"] = (drafting.tokens + plain.tokens) / seconds
        said["adaptspec.goodput.realised"] = (drafting.came + plain.came) / seconds
        said["adaptspec.spec.expected_accepted_tokens"] = sums.expected
    most = max(drafting, plain, key=lambda one: one.compared)
    if most.compared:
        said["adaptspec.decision.goodput"] = most.compared_tokens / most.compared
        said["adaptspec.decision.alternative"] = "off" if most is drafting else "drafting"
        said["adaptspec.decision.alternative_goodput"] = most.other_tokens / most.compared
    return said


def _context(record: RequestRecord) -> Attributes:
    """The features that choices may rest on."""
    request, sums = record.request, record.history.sums
    said: Attributes = {
        "adaptspec.context.task": request.speculation.task or OTHER,
        "adaptspec.context.batch_size": sums.batch / max(sums.rounds, 1),
        "adaptspec.context.prompt_tokens": len(request.prompt),
        "adaptspec.context.temperature": request.sampling.temperature,
    }
    if sums.scored:
        said["adaptspec.context.entropy"] = sums.entropy / sums.scored
        said["adaptspec.context.confidence"] = sums.confidence / sums.scored
    return said


def of_round(row: RowRound, drafters: Sequence[str]) -> Attributes:
    """One round of a request; `adaptspec.round` is its number in the journal."""
    tree: Attributes = {} if row.path is None else {"adaptspec.spec.nodes": row.nodes, "adaptspec.spec.path": row.path}
    return {
        "adaptspec.round": row.number,
        "adaptspec.spec.tier": row.depth,
        "adaptspec.spec.drafted": row.drafted,
        "adaptspec.spec.accepted": row.accepted,
        "adaptspec.spec.reason": _NAMES[row.reason],
        "adaptspec.spec.drafter": drafter_name(drafters, row.drafter) if row.depth else "",
        **tree,
    }


def summary(record: RequestRecord, drafters: Sequence[str]) -> str:
    """What speculation did for a request and why, in a sentence.

    A price is what a token costs in time, as the policy expected it: that of what was rejected over that of what ran.
    """
    sums = record.history.sums
    rounds, drafting = sums.rounds, sums.draft_rounds
    if not rounds:
        return "no rounds: the answer had no token beyond the one that comes with the prompt"
    words = quantity(rounds, "round")
    if not drafting:
        return f"{words}, none drafted: {_why_off(sums)}"
    words += ", all drafted" if drafting == rounds else f", {drafting} drafted"
    columns = record.history.columns
    choices = zip(columns["drafter"], columns["depth"], strict=True)
    used = Counter(choice for choice in choices if choice[1]).most_common(1)
    if used:
        words += f", most often {_choice(drafters, *used[0][0])}"
    if record.completion is not None:
        stats = record.completion.stats
        words += f"; {stats.accepted} of {stats.drafted} drafted tokens kept"
        words += f", of {stats.nodes} nodes" if stats.nodes > stats.drafted else ""
    dearer = _price(sums.drafting)
    if dearer is not None:
        words += f"; plain decoding {dearer:.1f} x the price of drafting"
    return words if drafting == rounds else f"{words}; {rounds - drafting} not drafted: {_why_off(sums)}"


def _why_off(sums: RoundSums) -> str:
    """The most frequent reason of rounds without drafts."""
    if not sums.off:
        return "the drafters found nothing to propose"
    ((code, count),) = sums.off.most_common(1)
    reason, dearer = Reason(code), _price(sums.plain)
    words = REASON_WORDS[reason].removeprefix("no drafts: ")
    if reason is Reason.OFF and dearer is not None:
        words = f"drafting {dearer:.1f} x the price of plain"
    return words if count == sums.off.total() else f"{words} ({count} of {sums.off.total()})"


def _price(forecast: Forecast) -> float | None:
    return forecast.compared_tokens / forecast.other_tokens if forecast.other_tokens else None


def _choice(drafters: Sequence[str], which: int, depth: int) -> str:
    return f"{drafter_name(drafters, which)} at {depth}" if depth else "off"


def messages(texts: Sequence[Mapping[str, str]]) -> str:
    """Roles and contents in the shape of `gen_ai.input.messages` and `gen_ai.output.messages`.

    Of the latter, readers need a `finish_reason` as well, and show none of those that have none.
    """
    shaped = [{**one, "parts": [{"type": "text", "content": one["content"]}]} for one in texts]
    for one in shaped:
        del one["content"]
    return json.dumps(shaped, ensure_ascii=False)

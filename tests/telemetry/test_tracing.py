"""Traces against a real receiver: the tree, names, attributes, parents and arrays of what really happened."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from adaptspec.decision import Reason
from adaptspec.request import Request, SamplingParams, SpeculationParams
from adaptspec.results import Completion, FinishReason, SpeculationStats, Timings
from adaptspec.telemetry.otlp_export import SpanQueue, TraceLevel, TraceSettings
from adaptspec.telemetry.request_store import RequestStore
from adaptspec.telemetry.tracing import Trace, Tracing
from tests.control.helpers import record
from tests.telemetry.otlp import Collector, SeenSpan, collecting

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SERVER, INTERNAL = 2, 1
OK, ERROR = 1, 2
REQUEST = Request("r", (5, 6, 7), SamplingParams(max_tokens=9), SpeculationParams("goodput", "code"), "chat")


@contextmanager
def traced(**settings: Any) -> Iterator[tuple[Tracing, Collector]]:
    """A tracing that sends to a collector; all is there once the block has been left."""
    with collecting() as collector:
        wanted = TraceSettings(endpoint=collector.url, **settings)
        store = RequestStore(pause=60.0)
        tracing = Tracing(store, wanted, SpanQueue(wanted.exporter()), "served")
        store.start(4, ("draft-model", "ngram"))
        try:
            yield tracing, collector
        finally:
            store.close()
            tracing.close()


def lived(
    tracing: Tracing,
    request: Request = REQUEST,
    *,
    rounds: tuple[tuple[int, int], ...] = ((3, 2), (0, 0)),
    finish: FinishReason = FinishReason.LENGTH,
    headers: dict[str, str] | None = None,
    status: int = 200,
    seconds: float = 0.02,
) -> Trace:
    """A request from HTTP to its end; rounds are (drafted, accepted)."""
    trace = tracing.begin("chat", headers or {})
    trace.asked([request], "chatcmpl-1", [{"role": "user", "content": "secret prompt"}] if trace.wants_content else [])
    now = time.monotonic()
    tracing.store.started(request)
    for drafted, accepted in rounds:
        tracing.store.emit(replace(record([drafted], [accepted]), request_ids=(request.id,)))
    stats = SpeculationStats(
        "goodput", len(rounds), drafted=sum(d for d, _ in rounds), accepted=sum(a for _, a in rounds)
    )
    times = Timings(now, now + 0.001, now + 0.002, now + seconds)
    error = "a fuse has blown" if finish is FinishReason.ERROR else None
    tracing.store.finished(request, Completion(request.id, "secret answer", (1,) * 4, 3, finish, stats, times, error))
    trace.end(status, None if status == 200 else str(status))
    return trace


def one(collector: Collector, name: str) -> SeenSpan:
    (span,) = collector.named(name)
    return span


def rounds_of(collector: Collector) -> list[SeenSpan]:
    return [span for span in collector.spans if span.name.startswith("round ")]


def test_a_request_is_a_tree_of_its_phases() -> None:
    """Root below the client's span; queue, prefill and decode below it, one after the other."""
    with traced() as (tracing, collector):
        headers = lived(tracing, headers={"Traceparent": PARENT, "tracestate": "a=b"}).headers
    root = one(collector, "chat served")
    assert (root.kind, root.trace_id, root.parent) == (SERVER, PARENT.split("-")[1], PARENT.split("-")[2])
    assert headers["traceparent"] == headers["traceresponse"] == f"00-{root.trace_id}-{root.span_id}-01"
    assert headers["tracestate"] == "a=b"
    queue, prefill, decode = (one(collector, name) for name in ("queue", "prefill", "decode"))
    for span in (queue, prefill, decode):
        assert (span.parent, span.trace_id, span.kind) == (root.span_id, root.trace_id, INTERNAL)
        assert span.status == root.status == OK
    assert root.start <= queue.start <= queue.end == prefill.start <= prefill.end == decode.start < decode.end
    assert root.service == "adaptspec"
    assert len(collector.spans) == 4


def test_the_root_says_what_was_asked_and_what_it_cost() -> None:
    """Under the names of the GenAI conventions, and those of vLLM and SGLang."""
    with traced() as (tracing, collector):
        lived(tracing)
    said = one(collector, "chat served").attributes
    assert said["gen_ai.operation.name"] == "chat"
    assert said["gen_ai.request.model"] == said["gen_ai.response.model"] == "served"
    assert (said["gen_ai.usage.input_tokens"], said["gen_ai.usage.output_tokens"]) == (3, 4)
    assert said["gen_ai.response.id"] == "chatcmpl-1"
    assert said["gen_ai.request.max_tokens"] == 9
    assert said["gen_ai.response.finish_reasons"] == ["length"]
    assert said["http.response.status_code"] == 200
    latency = {name.rpartition(".")[2]: value for name, value in said.items() if name.startswith("gen_ai.latency.")}
    assert latency["time_in_queue"] == pytest.approx(0.001)
    assert latency["time_to_first_token"] == pytest.approx(0.002)
    assert latency["time_in_model_prefill"] == pytest.approx(0.001)
    assert latency["time_in_model_decode"] == pytest.approx(0.018)
    assert latency["e2e"] == pytest.approx(0.02)
    assert not [name for name in said if "messages" in name]


def test_decode_says_what_was_decided_round_by_round() -> None:
    """Arrays, reasons, context and what was expected."""
    with traced() as (tracing, collector):
        lived(tracing, rounds=((3, 2), (0, 0), (1, 1)))
    said = one(collector, "decode").attributes
    arrays = {name: json.loads(said[f"adaptspec.spec.{name}"]) for name in ("drafted", "accepted", "tier")}
    assert arrays == {"drafted": [3, 0, 1], "accepted": [2, 0, 1], "tier": [3, 0, 1]}
    assert json.loads(said["adaptspec.spec.reason"]) == ["policy"] * 3
    assert json.loads(said["adaptspec.spec.drafter"]) == ["draft-model", "", "draft-model"]
    assert said["adaptspec.spec.truncated"] is False
    assert (said["adaptspec.policy"], said["adaptspec.decision.arm"]) == ("goodput", "draft-model at 1")
    assert said["adaptspec.context.task"] == "code"
    assert said["adaptspec.context.confidence"] == pytest.approx(0.8)


def test_long_requests_are_cut_and_say_so() -> None:
    """The arrays are bounded; the sums are whole."""
    with traced() as (tracing, collector):
        lived(tracing, rounds=((1, 1),) * 700)
    said = one(collector, "decode").attributes
    assert len(json.loads(said["adaptspec.spec.drafted"])) == 512
    assert said["adaptspec.spec.truncated"] is True
    assert (said["adaptspec.spec.rounds"], said["adaptspec.spec.drafted_tokens"]) == (700, 700)


@pytest.mark.parametrize(
    ("level", "names"),
    [
        (TraceLevel.REQUEST, ["chat served"]),
        (TraceLevel.PHASE, ["chat served", "decode", "prefill", "queue"]),
        (TraceLevel.ROUND, ["chat served", "decode", "prefill", "queue", "round 1", "round 2"]),
    ],
)
def test_levels_say_more_or_less(level: TraceLevel, names: list[str]) -> None:
    with traced(level=level) as (tracing, collector):
        lived(tracing)
    assert sorted(span.name for span in collector.spans) == names
    for span in rounds_of(collector):
        assert span.parent == one(collector, "decode").span_id


def test_slow_requests_are_told_round_by_round() -> None:
    """At level phase, those alone; at level round, a share of zero leaves them as well."""
    with traced(slow_seconds=0.5) as (tracing, collector):
        lived(tracing)
        lived(tracing, replace(REQUEST, id="slow"), seconds=0.6)
    assert len(rounds_of(collector)) == 2
    with traced(level=TraceLevel.ROUND, round_share=0.0) as (tracing, collector):
        lived(tracing)
    assert not rounds_of(collector)


def test_texts_are_told_only_if_asked_for() -> None:
    with traced() as (tracing, collector):
        lived(tracing)
    assert "secret" not in str(collector.spans)
    with traced(content=True) as (tracing, collector):
        lived(tracing)
    said = one(collector, "chat served").attributes
    assert "secret prompt" in said["gen_ai.input.messages"]
    assert "secret answer" in said["gen_ai.output.messages"]
    assert '"finish_reason": ' in said["gen_ai.output.messages"]  # Phoenix shows no message without one


def test_a_parent_that_is_not_sampled_is_heeded() -> None:
    """And its context goes on all the same."""
    with traced() as (tracing, collector):
        headers = lived(tracing, headers={"traceparent": PARENT[:-1] + "0"}).headers
    assert collector.spans == []
    assert headers["traceparent"].split("-")[1::2] == [PARENT.split("-")[1], "00"]


@pytest.mark.parametrize("cached", [0, 2])
def test_the_root_says_how_much_of_the_prompt_was_cached(cached: int) -> None:
    """No attribute if no token was cached, as inside an engine that does not report it."""
    with traced() as (tracing, collector):
        trace = tracing.begin("chat", {})
        trace.asked([REQUEST], "chatcmpl-1", [])
        tracing.store.started(REQUEST)
        now = time.monotonic()
        times = Timings(now, now, now, now)
        done = Completion("r", "", (1,), 3, FinishReason.STOP, SpeculationStats(), times, cached_tokens=cached)
        tracing.store.finished(REQUEST, done)
        trace.end(200, None)
    said = one(collector, "chat served").attributes
    assert said.get("gen_ai.usage.cache_read.input_tokens", 0) == cached


def test_rare_facts_are_events() -> None:
    """Each once, where it began: switch, off, probe, preempt, reload."""
    with traced() as (tracing, collector):
        trace = tracing.begin("chat", {})
        trace.asked([REQUEST], "chatcmpl-1", [])
        tracing.store.started(REQUEST)
        now = time.monotonic()
        mine = replace(record([2], [1]), request_ids=("r",))
        for reason in (Reason.POLICY, Reason.GUARD, Reason.GUARD, Reason.PROBE, Reason.PROBE):
            told = replace(mine, reasons=mine.reasons * 0 + int(reason))
            tracing.store.emit(replace(told, depths=told.depths * 0) if reason is Reason.GUARD else told)
        tracing.store.emit(replace(mine, request_ids=("another",)))
        tracing.reloaded("goodput")
        tracing.store.emit(mine)
        times = Timings(now, now, now, time.monotonic())
        stats = SpeculationStats("goodput")
        tracing.store.finished(REQUEST, Completion("r", "", (1,), 3, FinishReason.ABORT, stats, times))
        trace.end(499, "client_closed_request")
    decode, root = one(collector, "decode"), one(collector, "chat served")
    happened = ["abort", "off", "preempt", "probe", "reload", "resume", "summary", "switch"]
    assert sorted(name for name, _ in decode.events) == happened
    for link in ("reload goodput", "speculation off"):
        assert one(collector, link).links == [(root.trace_id, root.span_id)]
    assert root.attributes["error.type"] == "client_closed_request"


def test_failures_are_errors() -> None:
    """Of the engine on the decode span, of the server on the root."""
    with traced() as (tracing, collector):
        lived(tracing, finish=FinishReason.ERROR, status=500)
    assert one(collector, "decode").status == one(collector, "chat served").status == ERROR
    assert one(collector, "chat served").attributes["error.type"] == "500"


def test_a_stream_that_broke_off_is_an_error_though_its_status_was_good() -> None:
    with traced() as (tracing, collector):
        tracing.begin("chat", {}).end(200, "500")
        tracing.begin("chat", {}).end(200, None)
    broken, well = collector.named("chat served")
    assert (broken.status, broken.attributes["error.type"]) == (ERROR, "500")
    assert well.status == OK


def test_several_prompts_are_phases_of_one_answer() -> None:
    """One root; the phases of each prompt below it, and tokens summed up."""
    both = [replace(REQUEST, id=name) for name in ("a", "b")]
    with traced() as (tracing, collector):
        trace = tracing.begin("text_completion", {})
        trace.asked(both, "cmpl-1", [])
        for request in both:
            tracing.store.started(request)
        now = time.monotonic()
        for request in both:
            done = Completion(
                request.id, "", (1, 2), 3, FinishReason.STOP, SpeculationStats(), Timings(now, now, now, now + 1)
            )
            tracing.store.finished(request, done)
        trace.end(200, None)
    root = one(collector, "text_completion served")
    assert (root.attributes["gen_ai.usage.input_tokens"], root.attributes["gen_ai.usage.output_tokens"]) == (6, 4)
    assert len(collector.named("decode")) == 2

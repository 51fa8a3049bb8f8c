"""Traces against a real receiver: the tree, names, attributes, parents and arrays of what really happened."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from adaptspec.control.cost_model import CostModel
from adaptspec.decision import Reason
from adaptspec.request import Request, SamplingParams, SpeculationParams
from adaptspec.results import Completion, FinishReason, SpeculationStats, Timings
from adaptspec.telemetry.events import PolicyReloaded
from adaptspec.telemetry.otlp import BatchSettings, TraceLevel, TraceSettings, span_exporter
from adaptspec.telemetry.requests import RequestLog
from adaptspec.telemetry.stream import EventStream
from adaptspec.telemetry.tracer import Trace, Tracer, TracerThread
from tests.control.helpers import record
from tests.telemetry.otlp import Collector, SeenSpan, collecting
from tests.telemetry.rounds import learned_costs

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SERVER, INTERNAL = 2, 1
OK, ERROR = 1, 2
REQUEST = Request("r", (5, 6, 7), SamplingParams(max_tokens=9), SpeculationParams("goodput", "code"), "chat")


@dataclass(frozen=True)
class Traced:
    """A stream with a tracer as its sink."""

    stream: EventStream
    tracer: Tracer

    @classmethod
    def to(
        cls, url: str, *, batch: BatchSettings | None = None, costs: CostModel | None = None, **settings: Any
    ) -> Traced:
        stream, wanted = EventStream(interval=3600.0), TraceSettings(endpoint=url, **settings)
        tracer = Tracer(stream.note, wanted, span_exporter(wanted), "served", batch=batch)
        stream.add(RequestLog())
        stream.add(tracer)
        stream.start(costs, drafters=("draft-model", "ngram"))
        return cls(stream, tracer)


@contextmanager
def traced(*, costs: CostModel | None = None, **settings: Any) -> Iterator[tuple[Traced, Collector]]:
    """A tracer that exports to a collector, which has all spans when the block ends."""
    with collecting() as collector:
        one = Traced.to(collector.url, costs=costs, **settings)
        try:
            yield one, collector
        finally:
            one.stream.close()


def lived(
    run: Traced,
    request: Request = REQUEST,
    *,
    rounds: tuple[tuple[int, int], ...] = ((3, 2), (0, 0)),
    finish: FinishReason = FinishReason.LENGTH,
    headers: dict[str, str] | None = None,
    status: int = 200,
    seconds: float = 0.02,
) -> Trace:
    """A request from HTTP to its end; rounds are (drafted, accepted)."""
    trace = run.tracer.begin("chat", headers or {})
    trace.set_requests(
        [request], "chatcmpl-1", [{"role": "user", "content": "secret prompt"}] if trace.wants_content else []
    )
    now = time.monotonic()
    run.stream.started(request)
    for drafted, accepted in rounds:
        run.stream.emit(replace(record([drafted], [accepted]), request_ids=(request.id,)))
    stats = SpeculationStats(
        "goodput", len(rounds), drafted=sum(d for d, _ in rounds), accepted=sum(a for _, a in rounds)
    )
    times = Timings(now, now + 0.001, now + 0.002, now + seconds)
    error = "a fuse has blown" if finish is FinishReason.ERROR else None
    run.stream.finished(request, Completion(request.id, "secret answer", (1,) * 4, 3, finish, stats, times, error))
    trace.end(status, None if status == 200 else str(status))
    return trace


def one(collector: Collector, name: str) -> SeenSpan:
    (span,) = collector.named(name)
    return span


def rounds_of(collector: Collector) -> list[SeenSpan]:
    return [span for span in collector.spans if span.name.startswith("round ")]


def test_a_request_is_a_tree_of_its_phases() -> None:
    """Root below the client's span; queue, prefill and decode below it, one after the other."""
    with traced() as (run, collector):
        headers = lived(run, headers={"Traceparent": PARENT, "tracestate": "a=b"}).headers
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


def test_a_root_has_usage_times_and_outcome() -> None:
    """Under the names of the GenAI conventions, and those of vLLM and SGLang."""
    with traced() as (run, collector):
        lived(run)
    root = one(collector, "chat served").attributes
    assert root["gen_ai.operation.name"] == "chat"
    assert root["gen_ai.request.model"] == "served"
    assert (root["gen_ai.usage.input_tokens"], root["gen_ai.usage.output_tokens"]) == (3, 4)
    assert root["gen_ai.response.id"] == "chatcmpl-1"
    assert root["gen_ai.request.max_tokens"] == 9
    assert root["gen_ai.response.finish_reasons"] == ["length"]
    assert root["http.response.status_code"] == 200
    assert root["gen_ai.latency.time_in_queue"] == pytest.approx(0.001)
    assert root["gen_ai.latency.time_to_first_token"] == pytest.approx(0.002)
    assert not [name for name in root if "messages" in name]


def test_the_summary_is_the_output_that_viewers_show_first() -> None:
    """Unless the answer itself is exported."""
    with traced() as (run, collector):
        lived(run)
    root = one(collector, "chat served").attributes
    assert root["output.value"] == root["adaptspec.summary"] == one(collector, "decode").attributes["output.value"]
    assert "2 of 3 drafted tokens accepted" in root["adaptspec.summary"]
    with traced(content=True) as (run, collector):
        lived(run)
    root = one(collector, "chat served").attributes
    assert "output.value" not in root
    assert "2 of 3" in root["adaptspec.summary"]


def test_a_root_says_what_speculation_gained() -> None:
    costs = learned_costs()
    with traced(costs=costs) as (run, collector):
        lived(run, rounds=((3, 2),) * 20)
        lived(run, replace(REQUEST, id="plain"), rounds=((0, 0),) * 20)
    drafting, plain = (span.attributes for span in collector.named("chat served"))
    assert drafting["adaptspec.speedup_low"] < drafting["adaptspec.speedup"] < drafting["adaptspec.speedup_high"]
    assert drafting["adaptspec.speedup"] > 1.0
    assert {plain[f"adaptspec.speedup{end}"] for end in ("", "_low", "_high")} == {1.0}
    assert [span.attributes["adaptspec.speedup"] for span in collector.named("decode")] == [
        drafting["adaptspec.speedup"],
        1.0,
    ]


def test_a_root_fits_on_one_screen() -> None:
    """Also that of a request with everything: an error, cached tokens, a task, content."""
    sampling = SamplingParams(9, 0.7, 3, 0.5, presence_penalty=1.0, frequency_penalty=1.0, seed=4, stop=("x",))
    request = replace(REQUEST, sampling=sampling, speculation=SpeculationParams("goodput", "code", 3))
    for content in (False, True):
        with traced(content=content, costs=learned_costs()) as (run, collector):
            lived(run, request, finish=FinishReason.ERROR, status=500)
        assert 20 <= len(one(collector, "chat served").attributes) <= 25
        decode = one(collector, "decode").attributes
        assert (decode["gen_ai.request.seed"], decode["gen_ai.request.top_k"]) == (4, 3)
        assert decode["gen_ai.request.stop_sequences"] == ["x"]
        assert decode["adaptspec.request.max_depth"] == 3


def test_decode_has_the_rounds_as_arrays() -> None:
    with traced() as (run, collector):
        lived(run, rounds=((3, 2), (0, 0), (1, 1)))
    decode = one(collector, "decode").attributes
    arrays = {
        name: json.loads(decode[f"adaptspec.spec.{name}"])
        for name in ("depth", "drafted", "accepted", "entropy", "reason", "drafter")
    }
    assert arrays == {
        "depth": [3, 0, 1],
        "drafted": [3, 0, 1],
        "accepted": [2, 0, 1],
        "entropy": [0.8, None, 0.8],
        "reason": ["policy"] * 3,
        "drafter": ["draft-model", "", "draft-model"],
    }
    assert decode["adaptspec.spec.truncated"] is False
    assert decode["adaptspec.policy"] == "goodput"


def test_long_requests_are_cut_and_say_so() -> None:
    """The arrays are bounded; the sums are whole."""
    with traced() as (run, collector):
        lived(run, rounds=((1, 1),) * 700)
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
    with traced(level=level) as (run, collector):
        lived(run)
    assert sorted(span.name for span in collector.spans) == names
    for span in rounds_of(collector):
        assert span.parent == one(collector, "decode").span_id


def test_slow_requests_have_a_span_per_round() -> None:
    with traced(slow_seconds=0.5) as (run, collector):
        lived(run)
        lived(run, replace(REQUEST, id="slow"), seconds=0.6)
    first, second = rounds_of(collector)
    assert (first.name, first.attributes["adaptspec.spec.drafted"]) == ("round 1", 3)
    assert (first.attributes["adaptspec.spec.depth"], first.attributes["adaptspec.spec.drafter"]) == (3, "draft-model")
    assert first.attributes["adaptspec.spec.confidence"] == pytest.approx(0.8)
    assert (second.name, second.attributes["adaptspec.spec.drafter"]) == ("round 2", "")
    assert second.end > second.start


@pytest.mark.parametrize(("sampler", "share"), [("always_off", ""), ("parentbased_traceidratio", "0.0")])
def test_the_sampler_of_the_standard_variables_is_heeded(
    sampler: str, share: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", share)
    with traced() as (run, collector):
        lived(run)
        sampled = lived(run, headers={"traceparent": PARENT}).headers["traceparent"]
    assert len(collector.named("chat served")) == (sampler != "always_off")  # a sampled parent decides
    assert sampled.endswith("-01" if sampler != "always_off" else "-00")


def test_content_is_exported_only_by_setting() -> None:
    with traced() as (run, collector):
        lived(run)
    assert "secret" not in str(collector.spans)
    with traced(content=True) as (run, collector):
        lived(run)
    root = one(collector, "chat served").attributes
    assert "secret prompt" in root["gen_ai.input.messages"]
    assert "secret answer" in root["gen_ai.output.messages"]
    assert '"finish_reason": ' in root["gen_ai.output.messages"]  # Phoenix shows no message without one


def test_a_parent_that_is_not_sampled_is_heeded() -> None:
    """And its context goes on all the same."""
    with traced() as (run, collector):
        headers = lived(run, headers={"traceparent": PARENT[:-1] + "0"}).headers
    assert collector.spans == []
    assert headers["traceparent"].split("-")[1::2] == [PARENT.split("-")[1], "00"]


@pytest.mark.parametrize("cached", [0, 2])
def test_cached_tokens_are_reported_if_there_are_any(cached: int) -> None:
    """No attribute if no token was cached, as inside an engine that does not report it."""
    with traced() as (run, collector):
        trace = run.tracer.begin("chat", {})
        trace.set_requests([REQUEST], "chatcmpl-1", [])
        run.stream.started(REQUEST)
        now = time.monotonic()
        times = Timings(now, now, now, now)
        done = Completion("r", "", (1,), 3, FinishReason.STOP, SpeculationStats(), times, cached_tokens=cached)
        run.stream.finished(REQUEST, done)
        trace.end(200, None)
    said = one(collector, "chat served").attributes
    assert said.get("gen_ai.usage.cache_read.input_tokens", 0) == cached


def test_rare_facts_are_events() -> None:
    """Each once, where it began."""
    with traced() as (run, collector):
        trace = run.tracer.begin("chat", {})
        trace.set_requests([REQUEST], "chatcmpl-1", [])
        run.stream.started(REQUEST)
        now = time.monotonic()
        own = replace(record([2], [1]), request_ids=("r",))
        for reason in (Reason.POLICY, Reason.GUARD, Reason.GUARD, Reason.PROBE, Reason.PROBE):
            off = reason is Reason.GUARD
            run.stream.emit(replace(own, reasons=own.reasons * 0 + int(reason), depths=own.depths * (not off)))
        run.stream.emit(replace(own, request_ids=("another",)))
        run.stream.note(PolicyReloaded("goodput"))
        run.stream.emit(own)
        times = Timings(now, now, now, time.monotonic())
        stats = SpeculationStats("goodput")
        run.stream.finished(REQUEST, Completion("r", "", (1,), 3, FinishReason.ABORT, stats, times))
        trace.end(499, "client_closed_request")
    decode, root = one(collector, "decode"), one(collector, "chat served")
    happened = ["abort", "off", "preempt", "probe", "reload", "resume", "switch"]
    assert sorted(name for name, _ in decode.events) == happened
    assert root.attributes["error.type"] == "client_closed_request"


def test_failures_are_errors() -> None:
    """Of the engine on the decode span, of the server on the root."""
    with traced() as (run, collector):
        lived(run, finish=FinishReason.ERROR, status=500)
    assert one(collector, "decode").status == one(collector, "chat served").status == ERROR
    assert one(collector, "chat served").attributes["error.type"] == "500"


def test_a_stream_that_broke_off_is_an_error_though_its_status_was_good() -> None:
    with traced() as (run, collector):
        run.tracer.begin("chat", {}).end(200, "500")
        run.tracer.begin("chat", {}).end(200, None)
    broken, well = collector.named("chat served")
    assert (broken.status, broken.attributes["error.type"]) == (ERROR, "500")
    assert well.status == OK


def test_several_prompts_are_phases_of_one_answer() -> None:
    """One root; the phases of each prompt below it, and tokens summed up."""
    both = [replace(REQUEST, id=name) for name in ("a", "b")]
    with traced() as (run, collector):
        trace = run.tracer.begin("text_completion", {})
        trace.set_requests(both, "cmpl-1", [])
        for request in both:
            run.stream.started(request)
        now = time.monotonic()
        for request in both:
            done = Completion(
                request.id, "", (1, 2), 3, FinishReason.STOP, SpeculationStats(), Timings(now, now, now, now + 1)
            )
            run.stream.finished(request, done)
        trace.end(200, None)
    root = one(collector, "text_completion served")
    assert (root.attributes["gen_ai.usage.input_tokens"], root.attributes["gen_ai.usage.output_tokens"]) == (6, 4)
    assert len(collector.named("decode")) == 2


def test_requests_that_never_end_do_not_keep_their_root() -> None:
    """One that never reached the engine: its root is exported with what came, at the latest when the tracer closes."""
    with traced() as (run, collector):
        trace = run.tracer.begin("chat", {})
        trace.set_requests([REQUEST], "chatcmpl-1", [])
        trace.end(503, "503")
        assert run.stream.flush()
        assert collector.spans == []
    assert one(collector, "chat served").attributes["gen_ai.response.id"] == "chatcmpl-1"


def test_spans_are_counted_as_exported_or_lost() -> None:
    """They are sent in parts of `BatchSettings.spans`; a warning, and a word when they are accepted again."""
    with collecting() as collector:
        run = Traced.to(collector.url, batch=BatchSettings(spans=3))
        lived(run)
        assert run.stream.flush()
        assert (collector.requests, run.tracer.exported, run.tracer.lost) == (2, 4, 0)
        collector.status = 400
        lived(run)
        assert run.stream.flush()
        assert (run.tracer.exported, run.tracer.lost) == (4, 4)
        collector.status = 200
        lived(run)
        run.stream.close()
        assert (len(collector.spans), run.tracer.exported, run.tracer.lost) == (8, 8, 4)


def test_a_collector_that_hangs_delays_the_tracer_alone() -> None:
    """The queue stays bounded, what finds no room is counted, and closing leaves the thread behind."""
    with collecting(stall=True) as collector:
        wanted = TraceSettings(endpoint=collector.url)
        stream, log = EventStream(interval=3600.0), RequestLog()
        tracer = Tracer(stream.note, wanted, span_exporter(wanted), "served")
        background = TracerThread(tracer, limit=10, interval=0.001)
        for sink in (log, background):
            stream.add(sink)
        stream.start()
        run = Traced(stream, tracer)
        for number in range(100):
            lived(run, replace(REQUEST, id=str(number)))
            assert stream.flush()
        assert len(log.ended) == 100
        assert background.dropped >= 100
        stream.close(timeout=0.01)
        assert tracer.exported == 0


class Retrying(SpanExporter):
    """Tries a collector that is away until it is shut down."""

    def __init__(self) -> None:
        self._down = threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        assert spans
        self._down.wait()
        return SpanExportResult.FAILURE

    def shutdown(self) -> None:
        self._down.set()


def test_a_collector_that_is_away_is_given_up_at_the_end() -> None:
    """Once the time for closing is over, the rest counts as lost and the thread ends."""
    stream, log = EventStream(interval=3600.0), RequestLog()
    tracer = Tracer(stream.note, TraceSettings(), Retrying(), "served", batch=BatchSettings(spans=1))
    background = TracerThread(tracer, limit=100, interval=3600.0)
    for sink in (log, background):
        stream.add(sink)
    stream.start()
    lived(Traced(stream, tracer))
    assert stream.flush()
    stream.close(0.01)
    background.close(10.0)
    assert (tracer.exported, tracer.lost) == (0, 4)

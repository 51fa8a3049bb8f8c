"""Traces of requests: begun where HTTP requests come in, written when all of a request has ended.

The span of the HTTP request is begun at once, on the event loop: its ids go back to the client. Those below it (queue,
prefill, decode and, where asked for, rounds) are made by the store's worker, with the times that were noted on the way.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from adaptspec import __version__
from adaptspec.request import Request
from adaptspec.results import Completion, FinishReason
from adaptspec.telemetry.guard_events import GuardEvents
from adaptspec.telemetry.metrics import Metrics
from adaptspec.telemetry.otlp_export import SpanQueue, TraceLevel, TraceSettings, resource
from adaptspec.telemetry.request_record import RequestRecord, RowRound
from adaptspec.telemetry.request_spans import (
    SAMPLING,
    Attributes,
    latencies,
    messages,
    of_answers,
    of_decoding,
    of_model,
    of_request,
    of_round,
    summary,
)
from adaptspec.telemetry.request_store import Batch, Finished, Noted, RequestStore, RoundEnded

_PROPAGATOR = TraceContextTextMapPropagator()
# So long a request of an HTTP answer that is over may take to end: one that never reached the engine never does.
_PATIENCE = 5.0
_CLOSING_SECONDS = 3.0
_GOOD, _REFUSED, _FAILED = 200, 400, 500
_OK = Status(StatusCode.OK)


@dataclass
class Trace:
    """The span of one HTTP request, and what belongs to it."""

    span: Span
    tracing: Tracing
    requests: dict[str, Request] = field(default_factory=dict)
    answer: str = ""
    sampling: Sequence[str] = SAMPLING  # parameters that are known of its requests
    content: Sequence[Mapping[str, str]] = ()
    records: list[RequestRecord] = field(default_factory=list)

    @property
    def headers(self) -> Mapping[str, str]:
        """The context, for whoever asked: as requests carry it, and under the name that W3C drafts for answers."""
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier, set_span_in_context(self.span))
        return carrier | ({"traceresponse": carrier["traceparent"]} if carrier else {})

    @property
    def wants_content(self) -> bool:
        return self.tracing.settings.content and self.span.is_recording()

    def asked(self, requests: Sequence[Request], answer: str, content: Sequence[Mapping[str, str]]) -> None:
        """The requests to the engine that it has become; `content` is told only if it is wanted."""
        if not self.span.is_recording():
            return
        # What it says waits for its end: the first token is on its way now.
        self.answer, self.content = answer, content
        self.requests = {request.id: request for request in requests}
        self.tracing.store.note(self)

    def end(self, status: int | None, error: str | None) -> None:
        """The answer is over; an `error` after a good status is that of a stream that broke off. None: no HTTP."""
        if not self.span.is_recording():
            return
        if status is None:
            status = _GOOD
        else:
            self.span.set_attribute("http.response.status_code", status)
        if error is not None:
            self.span.set_attribute("error.type", error)
        if status >= _FAILED or (error is not None and status < _REFUSED):
            self.span.set_status(Status(StatusCode.ERROR))
        elif error is None:
            self.span.set_status(_OK)
        self.tracing.store.note(_Over(self, time.time_ns(), time.monotonic()))


@dataclass(frozen=True)
class _Over:
    trace: Trace
    ended: int  # nanoseconds since 1970
    when: float


class Tracing:
    """Where traces begin, and who writes them from what the store says."""

    def __init__(self, store: RequestStore, settings: TraceSettings, spans: SpanQueue, model: str) -> None:
        self.store = store
        self.settings = settings
        self._queue = spans
        self._model = model
        provider = TracerProvider(resource=resource(), shutdown_on_exit=False)
        provider.add_span_processor(spans)
        self._tracer = provider.get_tracer("adaptspec", __version__)
        self._traces: dict[str, Trace] = {}  # by request of the engine
        self._over: list[_Over] = []
        self._guarding = GuardEvents()
        store.detailed = True
        store.writes(self._take)

    @property
    def dropped(self) -> int:
        return self._queue.dropped + self.store.missing(self._take)

    @property
    def exported(self) -> int:
        return self._queue.exported

    def begin(self, operation: str, headers: Mapping[str, str], kind: SpanKind = SpanKind.SERVER) -> Trace:
        """An HTTP request has come in; its parent is in its headers. Of another `kind` where somebody else has it."""
        parent = _PROPAGATOR.extract({name.lower(): value for name, value in headers.items()}, Context())
        name, said = f"{operation} {self._model}", of_model(operation, self._model)
        return Trace(self._tracer.start_span(name, parent, kind, said), self)

    def reloaded(self, policy: str) -> None:
        self.store.note(policy)

    def close(self) -> None:
        """Send what is left, in three seconds at most: the store is closed."""
        self._write_roots(last=True)
        self._queue.close(_CLOSING_SECONDS)

    def _take(self, batch: Batch) -> None:
        for event in batch.events:
            if isinstance(event, RoundEnded):
                self._round(event, batch.clock)
            elif isinstance(event, Finished):
                self._finish(event.record, batch.clock)
            elif isinstance(event, Noted):
                self._heed(event, batch.clock)
        self._write_roots(last=batch.last)

    def _heed(self, noted: Noted, clock: float) -> None:
        what = noted.what
        if isinstance(what, Trace):
            self._traces |= dict.fromkeys(what.requests, what)
        elif isinstance(what, _Over):
            self._over.append(what)
        elif isinstance(what, str):  # a policy that came anew
            concerned = [one for one in noted.running if one.request.speculation.policy == what]
            for one in concerned:
                one.history.happened(noted.when, "reload", f"policy {what} came anew")
            said = {"adaptspec.policy": what}
            self._link(f"reload {what}", said, concerned, nanoseconds(noted.when + clock))

    def _round(self, event: RoundEnded, clock: float) -> None:
        guarding = self._guarding
        off, on = guarding.switched_off, guarding.came_back
        guarding.add(event.round.reasons.tolist())
        switches = {"speculation off": guarding.switched_off > off, "speculation on": guarding.came_back > on}
        for name in (name for name, happened in switches.items() if happened):
            concerned = [one for one in event.requests if one is not None]
            said = {"adaptspec.detail": "a guard's measurement"}
            self._link(name, said, concerned, nanoseconds(event.when + clock))

    def _finish(self, record: RequestRecord, clock: float) -> None:
        trace = self._traces.pop(record.request.id, None)
        if trace is None or record.completion is None:
            return
        trace.records.append(record)
        if self.settings.level is not TraceLevel.REQUEST:
            phases = _Phases(self._tracer, set_span_in_context(trace.span), clock, self.store.drafters)
            phases.write(record, record.completion, rounds=self._in_detail(trace, record.completion))

    def _in_detail(self, trace: Trace, completion: Completion) -> bool:
        slow, took = self.settings.slow_seconds, completion.timings.finished - completion.timings.arrived
        if slow is not None and took >= slow:
            return True
        # The same for all spans of a trace, wherever else it is sampled by its id.
        luck = (trace.span.get_span_context().trace_id & (2**56 - 1)) / 2**56
        return self.settings.level is TraceLevel.ROUND and luck < self.settings.round_share

    def _write_roots(self, *, last: bool) -> None:
        waiting = []
        for over in self._over:
            trace = over.trace
            if len(trace.records) < len(trace.requests) and not last and time.monotonic() - over.when <= _PATIENCE:
                waiting.append(over)
                continue
            for name in trace.requests:
                self._traces.pop(name, None)
            self._write_root(trace)
            trace.span.end(over.ended)
        self._over = waiting

    def _write_root(self, trace: Trace) -> None:
        if trace.requests:
            trace.span.set_attributes(of_request(next(iter(trace.requests.values())), trace.answer, trace.sampling))
        if trace.content:
            trace.span.set_attribute("gen_ai.input.messages", messages(trace.content))
        completions = [one.completion for one in trace.records if one.completion is not None]
        if not completions:
            return
        trace.span.set_attributes(of_answers(completions))
        words = [summary(one, self.store.drafters) for one in trace.records]
        trace.span.set_attribute("adaptspec.summary", "; ".join(words[:_SUMMARIES]))
        if self.settings.content:
            said = [
                {"role": "assistant", "content": one.text, "finish_reason": one.finish.value} for one in completions
            ]
            trace.span.set_attribute("gen_ai.output.messages", messages(said))

    def _link(self, name: str, said: Mapping[str, str], records: Sequence[RequestRecord], when: int) -> None:
        """Something that concerned several requests: a trace of its own that points to theirs."""
        traces = [self._traces[one.request.id] for one in records if one.request.id in self._traces]
        links = [Link(trace.span.get_span_context()) for trace in traces]
        span = self._tracer.start_span(name, Context(), attributes=said, links=links, start_time=when)
        span.set_status(_OK)
        span.end(when)


_SUMMARIES = 4  # of an HTTP request that has become many


@dataclass(frozen=True)
class _Phases:
    """Writes the spans of a request below a parent; `clock` makes monotonic seconds those since 1970."""

    tracer: Tracer
    parent: Context
    clock: float
    drafters: Sequence[str]

    def write(self, record: RequestRecord, completion: Completion, *, rounds: bool) -> None:
        """`rounds`: one span per round, too."""
        timings = completion.timings
        admitted = timings.finished if timings.admitted is None else timings.admitted
        self._span("queue", timings.arrived, admitted, {})
        if timings.admitted is None:
            return
        first = timings.finished if timings.first_token is None else timings.first_token
        # Not under the conventions' names: whoever adds up a trace would count tokens twice.
        self._span("prefill", admitted, first, {"adaptspec.prompt_tokens": completion.prompt_tokens})
        if timings.first_token is not None:
            self._decode(record, completion, timings.first_token, rounds=rounds)

    def _decode(self, record: RequestRecord, completion: Completion, start: float, *, rounds: bool) -> None:
        end, took = completion.timings.finished, "gen_ai.latency.time_in_model_decode"
        said = of_decoding(record, self.drafters) | {"adaptspec.output_tokens": len(completion.tokens)}
        said[took] = latencies(completion.timings)[took]
        span = self.tracer.start_span("decode", self.parent, attributes=said, start_time=self._at(start))
        for event in record.history.events:
            span.add_event(event.name, {"adaptspec.detail": event.detail}, self._at(event.when))
        span.add_event("summary", {"adaptspec.detail": str(said["adaptspec.summary"])}, self._at(end))
        if completion.finish is FinishReason.ABORT:
            span.add_event("abort", {"adaptspec.detail": completion.error or "the client left"}, self._at(end))
        elif completion.finish is FinishReason.ERROR:
            span.set_status(Status(StatusCode.ERROR, completion.error))
        else:
            span.set_status(_OK)
        if rounds:
            below = _Phases(self.tracer, set_span_in_context(span), self.clock, self.drafters)
            for number, row in enumerate(map(RowRound._make, record.history.kept), start=1):
                below._span(f"round {number}", row.ended - row.seconds, row.ended, of_round(row, self.drafters))
        span.end(self._at(end))

    def _span(self, name: str, start: float, end: float, said: Attributes) -> None:
        span = self.tracer.start_span(name, self.parent, attributes=said, start_time=self._at(start))
        span.set_status(_OK)
        span.end(self._at(end))

    def _at(self, seconds: float) -> int:
        return nanoseconds(seconds + self.clock)


def tracing_of(settings: TraceSettings, store: RequestStore, metrics: Metrics, model: str) -> Tracing | None:
    """Traces, if they are wanted and there is somewhere to send them. Raises ConfigError: not there, or not so."""
    if not settings.enabled:
        return None
    tracing = Tracing(store, settings, SpanQueue(settings.exporter()), model)
    taken, lost = "Spans that a collector has taken", "Spans and rounds that did not get through"
    metrics.watch_count("adaptspec_trace_exported_spans", taken, lambda: tracing.exported)
    metrics.watch_count("adaptspec_trace_dropped_spans", lost, lambda: tracing.dropped)
    return tracing


def nanoseconds(seconds: float) -> int:
    """As spans have times."""
    return int(seconds * 1e9)

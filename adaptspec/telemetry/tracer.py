"""Traces of requests: a root span per HTTP request, and below it the phases and rounds of its requests.

The root span begins on the event loop, since its ids go back to the client. All other spans are made when a request has
ended, on the thread of the sink, which also exports them: a collector that hangs delays nothing else.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from adaptspec import __version__
from adaptspec.request import Request
from adaptspec.results import Completion, FinishReason
from adaptspec.telemetry.events import EventBatch, Note, RequestFinished
from adaptspec.telemetry.metrics import Metrics
from adaptspec.telemetry.otlp import BatchSettings, TraceLevel, TraceSettings, resource, span_exporter
from adaptspec.telemetry.requests import LoggedRequest
from adaptspec.telemetry.span_attributes import (
    Attributes,
    answer_attributes,
    decode_attributes,
    messages,
    model_attributes,
    request_attributes,
    round_attributes,
)
from adaptspec.telemetry.stream import BackgroundSink, EventStream

_log = logging.getLogger(__name__)
_PROPAGATOR = TraceContextTextMapPropagator()
# For the ends of its requests; a request that never reached the engine has none.
_ROOT_WAIT_SECONDS = 5.0
_CLOSE_SECONDS = 3.0  # from the end of the server until exports are no longer tried again
_GOOD, _REFUSED, _FAILED = 200, 400, 500
_OK = Status(StatusCode.OK)


@dataclass(eq=False)
class Trace:
    """The root span of one HTTP request, and what is known of the request."""

    span: Span
    tracer: Tracer
    requests: Sequence[Request] = ()
    answer_id: str = ""
    content: Sequence[Mapping[str, str]] = ()
    logged: list[LoggedRequest] = field(default_factory=list)  # those that have ended

    @property
    def headers(self) -> Mapping[str, str]:
        """The context for the client: under the names of requests, and under the W3C's draft name for answers."""
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier, set_span_in_context(self.span))
        return carrier | ({"traceresponse": carrier["traceparent"]} if carrier else {})

    @property
    def wants_content(self) -> bool:
        return self.tracer.settings.content and self.span.is_recording()

    def set_requests(self, requests: Sequence[Request], answer_id: str, content: Sequence[Mapping[str, str]]) -> None:
        """Add the engine's requests; `content`, the messages, only if it is wanted."""
        if self.span.is_recording():
            # Attributes wait for the end: the first token is due.
            self.requests, self.answer_id, self.content = requests, answer_id, content
            self.tracer.expect(self)

    def end(self, status: int | None, error: str | None) -> None:
        """The answer is complete; `error` after a good status: a stream broke off. `status` None: there is no HTTP."""
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
        self.tracer.queue_end(self)


@dataclass(frozen=True)
class AnswerComplete:
    """Subject of a `Note`: the answer to an HTTP request is complete."""

    trace: Trace
    wall_time: int  # nanoseconds since 1970


class SpanBuffer(SpanProcessor):
    """Keeps sampled spans until they are exported."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        if span.context is not None and span.context.trace_flags.sampled:
            self.spans.append(span)


class Tracer:
    """A `Sink` that exports the spans of requests that have ended; `begin` is for the event loop.

    A span is `exported` when a collector has accepted it, and `lost` if it was refused or there is none.
    """

    def __init__(
        self,
        note: Callable[[object], None],
        settings: TraceSettings,
        exporter: SpanExporter,
        model: str,
        *,
        batch: BatchSettings | None = None,
    ) -> None:
        """`note` puts a subject into the stream that this is a sink of."""
        self.settings = settings
        self._note = note
        self._exporter = exporter
        self._batch = batch or BatchSettings()
        self._model = model
        self._buffer = SpanBuffer()
        provider = TracerProvider(resource=resource(), shutdown_on_exit=False)
        provider.add_span_processor(self._buffer)
        self._otel = provider.get_tracer("adaptspec", __version__)
        # By request. Weak: a trace whose end is lost to a full queue goes with its HTTP request.
        self._traces: WeakValueDictionary[str, Trace] = WeakValueDictionary()
        self._waiting: list[tuple[Note, AnswerComplete]] = []  # for the ends of their requests
        self._failing = False
        self.exported = 0
        self.lost = 0

    def begin(self, operation: str, headers: Mapping[str, str], kind: SpanKind = SpanKind.SERVER) -> Trace:
        """Begin the trace of an HTTP request below the parent in its headers. Any thread may call it.

        `kind`: SERVER if the HTTP request is ours, INTERNAL within another server's span.
        """
        parent = _PROPAGATOR.extract({name.lower(): value for name, value in headers.items()}, Context())
        attributes = model_attributes(operation, self._model)
        return Trace(self._otel.start_span(f"{operation} {self._model}", parent, kind, attributes), self)

    def expect(self, trace: Trace) -> None:
        """Put the spans of a trace's requests below it."""
        for request in trace.requests:
            self._traces[request.id] = trace

    def queue_end(self, trace: Trace) -> None:
        """Export a trace after the events so far."""
        self._note(AnswerComplete(trace, time.time_ns()))

    def handle(self, batch: EventBatch) -> None:
        for event in batch.events:
            if isinstance(event, RequestFinished) and event.logged is not None:
                self._finish(event.logged, batch.wall_offset)
            elif isinstance(event, Note) and isinstance(event.subject, AnswerComplete):
                self._waiting.append((event, event.subject))
            if len(self._buffer.spans) >= self._batch.spans:
                self._export()
        self._end_roots(time.monotonic() - _ROOT_WAIT_SECONDS)
        self._export()

    def close(self, timeout: float) -> None:  # noqa: ARG002 (an export has the timeout of the exporter)
        self._end_roots(time.monotonic())
        self._export()
        self._exporter.shutdown()

    def give_up(self) -> None:
        """Lose what is not exported yet, without waiting for a collector. Any thread may call it."""
        self._exporter.shutdown()

    def _finish(self, logged: LoggedRequest, wall_offset: float) -> None:
        trace = self._traces.pop(logged.request.id, None)
        if trace is None or logged.completion is None:
            return
        trace.logged.append(logged)
        level, slow = self.settings.level, self.settings.slow_seconds
        if level is TraceLevel.REQUEST:
            return
        timings = logged.completion.timings
        rounds = level is TraceLevel.ROUND or (slow is not None and timings.finished - timings.arrived >= slow)
        _RequestSpans(self, set_span_in_context(trace.span), wall_offset).write(
            logged, logged.completion, rounds=rounds
        )

    def _end_roots(self, before: float) -> None:
        """End root spans whose requests have ended, and those whose answer was complete `before` that time."""
        waiting = []
        for note, answer in self._waiting:
            trace = answer.trace
            if len(trace.logged) < len(trace.requests) and note.when > before:
                waiting.append((note, answer))
                continue
            if trace.requests:
                trace.span.set_attributes(request_attributes(trace.requests[0], trace.answer_id))
            if trace.content:
                trace.span.set_attribute("gen_ai.input.messages", messages(trace.content))
            if trace.logged:
                trace.span.set_attributes(answer_attributes(trace.logged, content=self.settings.content))
            trace.span.end(answer.wall_time)
        self._waiting = waiting

    def _export(self) -> None:
        spans, self._buffer.spans = self._buffer.spans, []
        for start in range(0, len(spans), self._batch.spans):
            part = spans[start : start + self._batch.spans]
            if self._accepted(part):
                self.exported += len(part)
                if self._failing:
                    _log.info("spans are sent again; %d were lost", self.lost)
                self._failing = False
                continue
            self.lost += len(part)
            if not self._failing:
                _log.warning("spans cannot be sent; they are dropped until they can (see the OTLP endpoint)")
            self._failing = True

    def _accepted(self, spans: Sequence[ReadableSpan]) -> bool:
        try:
            return self._exporter.export(spans) is SpanExportResult.SUCCESS
        except Exception:  # noqa: BLE001 - a fault of the exporter costs these spans, not the following ones
            _log.exception("the exporter of spans failed")
            return False

    def start_span(self, name: str, parent: Context, attributes: Attributes, start: int) -> Span:
        """Begin a span within a trace, `start` in nanoseconds since 1970."""
        return self._otel.start_span(name, parent, attributes=attributes, start_time=start)


@dataclass(frozen=True)
class _RequestSpans:
    """Writes the spans of a request below a parent; `wall_offset` turns monotonic seconds into those since 1970."""

    tracer: Tracer
    parent: Context
    wall_offset: float

    def write(self, logged: LoggedRequest, completion: Completion, *, rounds: bool) -> None:
        """`rounds`: also one span per round."""
        timings = completion.timings
        admitted = timings.finished if timings.admitted is None else timings.admitted
        self._span("queue", timings.arrived, admitted, {})
        if timings.admitted is None:
            return
        first = timings.finished if timings.first_token is None else timings.first_token
        # Not by the names of the conventions: viewers that add up a trace would count tokens twice.
        self._span("prefill", admitted, first, {"adaptspec.prompt_tokens": completion.prompt_tokens})
        if timings.first_token is not None:
            self._decode(logged, completion, timings.first_token, rounds=rounds)

    def _decode(self, logged: LoggedRequest, completion: Completion, start: float, *, rounds: bool) -> None:
        end = self._at(completion.timings.finished)
        span = self.tracer.start_span("decode", self.parent, decode_attributes(logged), self._at(start))
        for event in logged.events():
            span.add_event(event.name, {"adaptspec.detail": event.detail}, self._at(event.when))
        if completion.finish is FinishReason.ABORT:
            span.add_event("abort", {"adaptspec.detail": completion.error or "the client left"}, end)
        if completion.finish is FinishReason.ERROR:
            span.set_status(Status(StatusCode.ERROR, completion.error))
        elif completion.finish is not FinishReason.ABORT:
            span.set_status(_OK)
        if rounds:
            below = _RequestSpans(self.tracer, set_span_in_context(span), self.wall_offset)
            kept = logged.rounds
            for index, one in enumerate(kept, start=1 + logged.sums.rows - len(kept)):
                below._span(f"round {index}", one.ended - one.seconds, one.ended, round_attributes(logged, one))
        span.end(end)

    def _span(self, name: str, start: float, end: float, attributes: Attributes) -> None:
        span = self.tracer.start_span(name, self.parent, attributes, self._at(start))
        span.set_status(_OK)
        span.end(self._at(end))

    def _at(self, seconds: float) -> int:
        return int((seconds + self.wall_offset) * 1e9)


class TracerThread(BackgroundSink):
    """A `Sink` that runs a tracer on a thread of its own.

    At the end it has three seconds to export what is left: a collector that is away would be tried for longer.
    """

    def __init__(self, tracer: Tracer, *, limit: int, interval: float) -> None:
        super().__init__("tracer", tracer, events=(RequestFinished, Note), limit=limit, interval=interval)
        self._tracer = tracer

    def close(self, timeout: float) -> None:
        timer = threading.Timer(min(timeout, _CLOSE_SECONDS), self._tracer.give_up)
        timer.daemon = True
        timer.start()
        super().close(timeout)
        timer.cancel()


def open_tracer(settings: TraceSettings, stream: EventStream, metrics: Metrics, model: str) -> Tracer | None:
    """Trace the requests of a stream, on a thread of its own; None: no traces are wanted, or there is no collector.

    Raises ConfigError: a setting or an `OTEL_*` variable cannot be used.
    """
    if not settings.enabled:
        return None
    batch = BatchSettings.from_environment()
    tracer = Tracer(stream.note, settings, span_exporter(settings), model, batch=batch)
    background = TracerThread(tracer, limit=batch.waiting, interval=batch.seconds)
    stream.add(background)
    metrics.watch_count(
        "adaptspec_trace_exported_spans", "Spans that a collector has accepted", lambda: tracer.exported
    )
    metrics.watch_count(
        "adaptspec_trace_dropped_spans",
        "Spans that no collector accepted, and ends of requests that found the queue full",
        lambda: stream.lost(background) + background.dropped + tracer.lost,
    )
    return tracer

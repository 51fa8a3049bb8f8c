"""Traces of requests: begun where HTTP requests come in, told on by the engine, written when all of it has ended.

A sink that puts what it is told into a queue; a thread of its own puts stories together and makes spans of them. Only
the span of the HTTP request is begun at once, on the event loop: its ids go back to the client. Knows no endpoint and
no exporter but through the queue that spans end in.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from adaptspec import __version__
from adaptspec.control.guards import Guarding
from adaptspec.telemetry.bounded_queue import Mailbox
from adaptspec.telemetry.span_attributes import messages, of_answers, of_model, of_request
from adaptspec.telemetry.span_queue import SpanQueue
from adaptspec.telemetry.spans import Clock, PhaseSpans
from adaptspec.telemetry.request_record import Fact, Stories, Story
from adaptspec.telemetry.trace_settings import TraceLevel, TraceSettings, resource
from adaptspec.types import Completion, Request, RoundRecord

_PROPAGATOR = TraceContextTextMapPropagator()
# So long a request of an HTTP answer that is over may take to end: one that never reached the engine never does.
_PATIENCE = 5.0
_CLOSING_SECONDS = (1.0, 3.0)  # to put stories together, to send spans
_REFUSED, _FAILED = 400, 500


@dataclass
class Trace:
    """The span of one HTTP request, and what belongs to it."""

    span: Span
    tracing: Tracing
    requests: dict[str, Request] = field(default_factory=dict)
    answer: str = ""
    content: Sequence[Mapping[str, str]] = ()
    stories: list[Story] = field(default_factory=list)
    ended: int | None = None  # nanoseconds since 1970
    gone: float = 0.0  # the same on the monotonic clock

    @property
    def headers(self) -> Mapping[str, str]:
        """The context, for whoever asked: as requests carry it, and under the name that W3C drafts for answers."""
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier, set_span_in_context(self.span))
        return carrier | ({"traceresponse": carrier["traceparent"]} if carrier else {})

    @property
    def wants_content(self) -> bool:
        """Whether prompts may be told."""
        return self.tracing.settings.content and self.span.is_recording()

    def asked(self, requests: Sequence[Request], answer: str, content: Sequence[Mapping[str, str]]) -> None:
        """The requests to the engine that it has become; `content` is told only if it is wanted."""
        if not self.span.is_recording():
            return
        # What it says waits for its end: the first token is on its way now.
        self.answer, self.content = answer, content
        self.requests = {request.id: request for request in requests}
        self.tracing.box.put(_Asked(self))

    def end(self, status: int, error: str | None) -> None:
        """The answer is over; an `error` after a good status is that of a stream that broke off."""
        if self.span.is_recording():
            self.span.set_attribute("http.response.status_code", status)
            if error is not None:
                self.span.set_attribute("error.type", error)
            if status >= _FAILED or (error is not None and status < _REFUSED):
                self.span.set_status(Status(StatusCode.ERROR))
            self.tracing.box.put(_Ended(self, time.time_ns(), time.monotonic()))


@dataclass(frozen=True)
class _Asked:
    trace: Trace


@dataclass(frozen=True)
class _Ended:
    trace: Trace
    when: int
    gone: float


@dataclass(frozen=True)
class _Finished:
    request: Request
    completion: Completion


@dataclass(frozen=True)
class _Reloaded:
    policy: str
    when: float


_Entry = _Asked | _Ended | _Finished | _Reloaded | Request | tuple[RoundRecord, float]


class Tracing:
    """A `Sink`, and where traces begin. Costs the engine thread an append per round, whatever the level."""

    def __init__(self, settings: TraceSettings, spans: SpanQueue, model: str, *, pause: float = 0.25) -> None:
        self.settings = settings
        self.box: Mailbox[_Entry] = Mailbox("traces", self._handle, pause=pause)
        self._queue = spans
        self._model = model
        provider = TracerProvider(resource=resource(), shutdown_on_exit=False)
        provider.add_span_processor(spans)
        self._tracer = provider.get_tracer("adaptspec", __version__)
        self._stories = Stories(())
        self._spans = PhaseSpans(self._tracer, ())
        self._traces: dict[str, Trace] = {}  # by request of the engine
        self._over: list[Trace] = []
        self._guarding = Guarding()

    @property
    def dropped(self) -> int:
        """Spans that nobody received, and entries that came too fast."""
        return self._queue.dropped + self.box.dropped

    @property
    def exported(self) -> int:
        """Spans that a collector has taken."""
        return self._queue.exported

    def start(self, drafters: Sequence[str]) -> None:
        """Say what the engine drafts with, and begin."""
        self._stories = Stories(drafters)
        self._spans = PhaseSpans(self._tracer, drafters)
        self.box.start()

    def begin(self, operation: str, headers: Mapping[str, str]) -> Trace:
        """An HTTP request has come in; its parent is in its headers."""
        parent = _PROPAGATOR.extract({name.lower(): value for name, value in headers.items()}, Context())
        name, said = f"{operation} {self._model}", of_model(operation, self._model)
        return Trace(self._tracer.start_span(name, parent, SpanKind.SERVER, said), self)

    def started(self, request: Request) -> None:
        """One request has been admitted."""
        self.box.put(request)

    def emit(self, record: RoundRecord) -> None:
        """One round has ended."""
        self.box.put((record, time.monotonic()))

    def finished(self, request: Request, completion: Completion) -> None:
        """One request has ended."""
        self.box.put(_Finished(request, completion))

    def reloaded(self, policy: str) -> None:
        """A policy came anew."""
        self.box.put(_Reloaded(policy, time.monotonic()))

    def close(self) -> None:
        """Write and send what is left; never takes longer than four seconds."""
        stories, spans = _CLOSING_SECONDS
        self.box.close(stories)
        self._write_roots()
        self._queue.close(spans)

    def _handle(self, entries: Sequence[_Entry]) -> None:
        clock = Clock()
        for entry in entries:
            if isinstance(entry, tuple):
                self._round(*entry, clock)
            elif isinstance(entry, Request):
                self._stories.start(entry)
            elif isinstance(entry, _Finished):
                self._finish(entry, clock)
            elif isinstance(entry, _Asked):
                self._traces |= dict.fromkeys(entry.trace.requests, entry.trace)
            elif isinstance(entry, _Ended):
                entry.trace.ended, entry.trace.gone = entry.when, entry.gone
                self._over.append(entry.trace)
            else:
                self._reload(entry, clock)
        self._write_roots()

    def _round(self, record: RoundRecord, ended: float, clock: Clock) -> None:
        stories = self._stories.add(record, ended)
        before = self._guarding.switched_off, self._guarding.came_back
        self._guarding.add(record.reasons.tolist())
        for name, then, now in zip(
            ("speculation off", "speculation on"),
            before,
            (self._guarding.switched_off, self._guarding.came_back),
            strict=True,
        ):
            if now > then:
                self._link(name, {"adaptspec.detail": "a guard's measurement"}, stories, clock.at(ended))

    def _finish(self, ended: _Finished, clock: Clock) -> None:
        story = self._stories.end(ended.request, ended.completion)
        trace = self._traces.pop(ended.request.id, None)
        if trace is None:
            return
        trace.stories.append(story)
        level = self.settings.level
        if level is not TraceLevel.REQUEST:
            rounds = self._in_detail(trace, ended.completion)
            self._spans.write(story, ended.completion, set_span_in_context(trace.span), clock, rounds=rounds)

    def _in_detail(self, trace: Trace, completion: Completion) -> bool:
        slow, took = self.settings.slow_seconds, completion.timings.finished - completion.timings.arrived
        if slow is not None and took >= slow:
            return True
        # The same for all spans of a trace, wherever else it is sampled by its id.
        luck = (trace.span.get_span_context().trace_id & (2**56 - 1)) / 2**56
        return self.settings.level is TraceLevel.ROUND and luck < self.settings.round_share

    def _write_roots(self) -> None:
        waiting = []
        for trace in self._over:
            late = time.monotonic() - trace.gone > _PATIENCE or self.box.closing
            if len(trace.stories) < len(trace.requests) and not late:
                waiting.append(trace)
                continue
            for name in trace.requests:
                self._traces.pop(name, None)
            self._write_root(trace)
        self._over = waiting

    def _write_root(self, trace: Trace) -> None:
        if trace.requests:
            trace.span.set_attributes(of_request(next(iter(trace.requests.values())), trace.answer))
        if trace.content:
            trace.span.set_attribute("gen_ai.input.messages", messages(trace.content))
        completions = [story.completion for story in trace.stories if story.completion is not None]
        if completions:
            trace.span.set_attributes(of_answers(completions))
            if self.settings.content:
                said = [
                    {"role": "assistant", "content": one.text, "finish_reason": one.finish.value} for one in completions
                ]
                trace.span.set_attribute("gen_ai.output.messages", messages(said))
        trace.span.end(trace.ended)

    def _reload(self, entry: _Reloaded, clock: Clock) -> None:
        concerned = [s for s in self._stories.running if s.request.speculation.policy == entry.policy]
        for story in concerned:
            story.tell(Fact(entry.when, "reload", f"policy {entry.policy} came anew"))
        self._link(f"reload {entry.policy}", {"adaptspec.policy": entry.policy}, concerned, clock.at(entry.when))

    def _link(self, name: str, said: dict[str, str], stories: Sequence[Story], when: int) -> None:
        traces = [self._traces[story.request.id] for story in stories if story.request.id in self._traces]
        self._spans.links(name, said, [trace.span.get_span_context() for trace in traces], when)

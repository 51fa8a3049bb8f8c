"""Stories as spans: queue, prefill, decode and, where asked for, rounds, below the span of their HTTP request.

Knows stories and a tracer. Spans are made when a request has ended, with the times that were noted on the way.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanContext, Status, StatusCode, Tracer, set_span_in_context

from adaptspec.telemetry.span_attributes import latencies, of_decoding, of_round
from adaptspec.telemetry.request_record import Story
from adaptspec.types import Completion, FinishReason


class Clock:
    """Seconds of the monotonic clock as nanoseconds since 1970, by the difference of the two at its making."""

    def __init__(self) -> None:
        self._offset = time.time_ns() - time.monotonic_ns()

    def at(self, seconds: float) -> int:
        """When it was."""
        return self._offset + int(seconds * 1e9)


class PhaseSpans:
    """Writes what happened to a request below a parent."""

    def __init__(self, tracer: Tracer, drafters: Sequence[str]) -> None:
        self._tracer = tracer
        self._drafters = tuple(drafters)

    def write(self, story: Story, completion: Completion, parent: Context, clock: Clock, *, rounds: bool) -> None:
        """`rounds`: one span per round, too."""
        timings, known = completion.timings, latencies(completion.timings)
        end = timings.finished
        admitted = end if timings.admitted is None else timings.admitted
        self._phase("queue", parent, (clock.at(timings.arrived), clock.at(admitted)))
        if timings.admitted is None:
            return
        first = end if timings.first_token is None else timings.first_token
        # Not under the conventions' names: whoever adds up a trace would count tokens twice.
        prefill = {"adaptspec.prompt_tokens": completion.prompt_tokens}
        self._phase("prefill", parent, (clock.at(admitted), clock.at(first)), prefill)
        if timings.first_token is not None:
            self._decode(story, completion, parent, clock, rounds=rounds, seconds=known)

    def links(self, name: str, attributes: dict[str, str], contexts: Sequence[SpanContext], when: int) -> None:
        """Something that concerned several requests: a trace of its own that points to theirs."""
        links = [Link(context) for context in contexts]
        span = self._tracer.start_span(name, Context(), attributes=attributes, links=links, start_time=when)
        span.end(when)

    def _phase(self, name: str, parent: Context, times: tuple[int, int], said: dict[str, int] | None = None) -> None:
        span = self._tracer.start_span(name, parent, attributes=said, start_time=times[0])
        span.end(times[1])

    def _decode(
        self,
        story: Story,
        completion: Completion,
        parent: Context,
        clock: Clock,
        *,
        rounds: bool,
        seconds: dict[str, float],
    ) -> None:
        start, end = completion.timings.first_token or completion.timings.finished, completion.timings.finished
        said = of_decoding(story, self._drafters) | {"adaptspec.output_tokens": len(completion.tokens)}
        said["gen_ai.latency.time_in_model_decode"] = seconds["gen_ai.latency.time_in_model_decode"]
        span = self._tracer.start_span("decode", parent, attributes=said, start_time=clock.at(start))
        for fact in story.facts:
            span.add_event(fact.name, {"adaptspec.detail": fact.detail}, clock.at(fact.when))
        if completion.finish is FinishReason.ABORT:
            span.add_event("abort", {"adaptspec.detail": completion.error or "the client left"}, clock.at(end))
        if completion.finish is FinishReason.ERROR:
            span.set_status(Status(StatusCode.ERROR, completion.error))
        if rounds:
            self._rounds(story, set_span_in_context(span), clock)
        span.end(clock.at(end))

    def _rounds(self, story: Story, parent: Context, clock: Clock) -> None:
        for i, (end, took) in enumerate(zip(story.ends, story.seconds, strict=True)):
            said = of_round(story, i, self._drafters)
            span = self._tracer.start_span("round", parent, attributes=said, start_time=clock.at(end - took))
            span.end(clock.at(end))

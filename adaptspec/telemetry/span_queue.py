"""A span processor that never holds anybody up: a bounded queue, a thread, and counts of what did not get through.

The SDK's own one keeps no count that can be read, and waits up to half a minute at the end.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from adaptspec.telemetry.bounded_queue import BoundedQueue
from adaptspec.telemetry.trace_settings import number

_log = logging.getLogger(__name__)


class SpanQueue(SpanProcessor):
    """Hands spans to an exporter in batches. The sizes are those of the standard `OTEL_BSP_*` variables.

    Batches are rare and large on purpose: sent in small ones all the time, spans would be in the way of every answer.
    """

    def __init__(self, exporter: SpanExporter, pause: float | None = None) -> None:
        """`pause`: seconds between two batches, in place of the variable's.

        Raises:
            ConfigError: a variable holds no positive number.
        """
        self._exporter = exporter
        self._size = number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512)
        limit = number("OTEL_BSP_MAX_QUEUE_SIZE", 2048)
        self._queue: BoundedQueue[ReadableSpan] = BoundedQueue(
            "spans",
            self._export,
            limit=limit,
            pause=number("OTEL_BSP_SCHEDULE_DELAY", 5000) / 1e3 if pause is None else pause,
            enough=min(self._size, limit),
        )
        self._failed = 0
        self._failing = False
        self._giving_up = False
        self.exported = 0
        self._queue.start()

    @property
    def dropped(self) -> int:
        """Spans that nobody received: no room, or refused, or nobody there."""
        return self._queue.dropped + self._failed

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Nothing happens before it ends."""

    def on_end(self, span: ReadableSpan) -> None:
        """Queue what is sampled."""
        if span.context is not None and span.context.trace_flags.sampled:
            self._queue.put(span)

    def close(self, seconds: float) -> None:
        """Send what is left, in `seconds` at most."""
        self._queue.close(seconds)
        self._giving_up = True
        self._exporter.shutdown()

    def shutdown(self) -> None:
        """See `close`."""
        self.close(1.0)

    def force_flush(self, timeout_millis: int = 30_000) -> bool:  # noqa: ARG002 (the SDK's protocol)
        """Send what is there now."""
        self._queue.work()
        return True

    def _export(self, spans: Sequence[ReadableSpan]) -> None:
        for start in range(0, len(spans), self._size):
            batch = spans[start : start + self._size]
            if not self._giving_up and self._taken(batch):
                self.exported += len(batch)
                self._failing = False
                continue
            self._failed += len(batch)
            if not self._failing:
                _log.warning("spans cannot be sent; they are dropped until they can (see the OTLP endpoint)")
            self._failing = True

    def _taken(self, batch: Sequence[ReadableSpan]) -> bool:
        try:
            return self._exporter.export(batch) is SpanExportResult.SUCCESS
        except Exception:  # noqa: BLE001 - a fault of the exporter's costs this batch, not those after it
            _log.exception("the exporter of spans failed")
            return False

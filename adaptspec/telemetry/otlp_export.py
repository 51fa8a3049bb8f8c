"""How much is traced, where spans and metrics go, and the queue from which spans leave.

Our own options stand beside the standard `OTEL_*` variables.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, TypeVar

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from pydantic import Field

from adaptspec import __version__
from adaptspec.errors import ConfigError
from adaptspec.telemetry.bounded_queue import BoundedQueue

_log = logging.getLogger(__name__)
T = TypeVar("T")


class TraceLevel(str, Enum):
    """How much a request's trace says."""

    OFF = "off"
    REQUEST = "request"  # one span per request
    PHASE = "phase"  # and its queue, prefill and decode, with what was decided in arrays
    ROUND = "round"  # and a span per round


@dataclass(frozen=True)
class TraceSettings:
    """`endpoint` None: what the `OTEL_EXPORTER_OTLP_*` variables say, and nothing is sent where they say nothing.

    Requests that took `slow_seconds` or more get a span per round at level `phase`, too. At level `round`, only the
    share `round_share` of traces does. `content`: prompts and answers are exported as well.
    """

    level: TraceLevel = TraceLevel.PHASE
    endpoint: Annotated[str, Field(pattern="^https?://")] | None = None
    slow_seconds: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] | None = None
    round_share: Annotated[float, Field(ge=0.0, le=1.0)] = 1.0
    content: bool = False

    @property
    def enabled(self) -> bool:
        return self.level is not TraceLevel.OFF and _wanted("TRACES", self.endpoint)

    def exporter(self) -> OTLPSpanExporter:
        """What sends spans. Raises ConfigError for a variable that cannot be used."""
        return _exporter(OTLPSpanExporter, "traces", self.endpoint)


@dataclass(frozen=True)
class PushSettings:
    """Whether metrics are sent as well (`OTEL_METRICS_EXPORTER=otlp` asks for it, too), and where to."""

    wanted: bool = False
    endpoint: str | None = None

    @property
    def enabled(self) -> bool:
        asked = self.wanted or os.environ.get("OTEL_METRICS_EXPORTER", "") == "otlp"
        return asked and not _disabled()

    def exporter(self) -> OTLPMetricExporter:
        """What sends metrics. Raises ConfigError for a variable that cannot be used."""
        return _exporter(OTLPMetricExporter, "metrics", self.endpoint)


class SpanQueue(SpanProcessor):
    """Hands spans to an exporter in batches. The sizes are those of the standard `OTEL_BSP_*` variables.

    The SDK's own processor keeps no count that can be read, and waits up to half a minute at the end. Batches are
    rare and large on purpose: sent in small ones all the time, spans would be in the way of every answer.
    """

    def __init__(self, exporter: SpanExporter, pause: float | None = None) -> None:
        """`pause`: seconds between two batches, in place of the variable's. Raises ConfigError, as `number` does."""
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

    def on_end(self, span: ReadableSpan) -> None:
        if span.context is not None and span.context.trace_flags.sampled:
            self._queue.put(span)

    def close(self, seconds: float) -> None:
        self._queue.close(seconds)
        self._giving_up = True
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:  # noqa: ARG002 (the SDK's protocol)
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


def resource() -> Resource:
    """Who says all this; `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` win over ours."""
    ours = {"service.version": __version__}
    if not os.environ.get("OTEL_SERVICE_NAME") and "service.name" not in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", ""):
        ours["service.name"] = "adaptspec"
    return Resource.create(ours)


def number(variable: str, default: int) -> int:
    """A positive whole number from the environment. Raises ConfigError if it is none."""
    text = os.environ.get(variable, "").strip()
    if not text:
        return default
    if not text.isdecimal() or not int(text):
        raise ConfigError(f"{variable} is {text!r}; it must be a positive whole number, or be left out")
    return int(text)


def _wanted(signal: str, endpoint: str | None) -> bool:
    if _disabled() or os.environ.get(f"OTEL_{signal}_EXPORTER", "") == "none":
        return False
    variables = ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT")
    return endpoint is not None or any(os.environ.get(variable) for variable in variables)


def _disabled() -> bool:
    return os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"


def _exporter(kind: Callable[..., T], signal: str, endpoint: str | None) -> T:
    """What sends to the URL of a signal below a collector's; `endpoint` None leaves it to the environment."""
    # It warns at every try of a collector that is away; who sends says it once, and counts.
    logging.getLogger("opentelemetry.exporter.otlp.proto.http").setLevel(logging.CRITICAL)
    for variable in (f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        protocol = os.environ.get(variable)
        if protocol not in (None, "", "http/protobuf"):
            _log.warning("%s is %s; only http/protobuf is spoken here, usually on port 4318", variable, protocol)
    if endpoint is not None:
        if not endpoint.startswith(("http://", "https://")):
            raise ConfigError(f"--otlp-endpoint {endpoint}: give a URL such as http://localhost:4318")
        path = f"/v1/{signal}"
        endpoint = endpoint.removesuffix(path).rstrip("/") + path
    try:
        return kind(endpoint=endpoint)
    except (ValueError, OSError) as error:
        raise ConfigError(f"OTEL_EXPORTER_OTLP_*: cannot be used ({error})") from error

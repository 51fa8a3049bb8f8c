"""How much is traced, and the exporter that sends spans to a collector.

Our own settings complement the standard `OTEL_*` variables.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.export import SpanExporter
from pydantic import Field

from adaptspec import __version__
from adaptspec.errors import ConfigError

_log = logging.getLogger(__name__)
_PATH = "/v1/traces"
_MAX_DIGITS = 9  # of a number in a variable
_MAX_SHOWN = 40  # characters of a wrong value


class TraceLevel(str, Enum):
    """How detailed the trace of a request is."""

    OFF = "off"
    REQUEST = "request"  # one span per request
    PHASE = "phase"  # also its queue, prefill and decode, with the rounds in arrays
    ROUND = "round"  # also a span per round


@dataclass(frozen=True)
class TraceSettings:
    """What is traced, and the URL of the collector.

    `endpoint` None: the `OTEL_EXPORTER_OTLP_*` variables name it; without any, nothing is sent. Requests that took
    `slow_seconds` or more get a span per round at level `phase`, too. `content`: prompts and answers are exported.
    """

    level: TraceLevel = TraceLevel.PHASE
    endpoint: Annotated[str, Field(pattern="^https?://")] | None = None
    slow_seconds: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] | None = None
    content: bool = False

    @property
    def enabled(self) -> bool:
        if self.level is TraceLevel.OFF or os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
            return False
        if os.environ.get("OTEL_TRACES_EXPORTER", "") == "none":
            return False
        variables = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
        return self.endpoint is not None or any(os.environ.get(variable) for variable in variables)


@dataclass(frozen=True)
class BatchSettings:
    """Sizes of what is sent, by the standard `OTEL_BSP_*` variables.

    Batches are rare and large on purpose: sending small ones all the time delays answers.
    """

    spans: int = 512  # sent at once
    waiting: int = 2048  # ends of requests that wait for a collector, each with its phases
    seconds: float = 5.0  # between two batches

    @classmethod
    def from_environment(cls) -> BatchSettings:
        """Raises ConfigError: a variable has a value that is not a positive whole number."""
        return cls(
            _number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", cls.spans),
            _number("OTEL_BSP_MAX_QUEUE_SIZE", cls.waiting),
            _number("OTEL_BSP_SCHEDULE_DELAY", int(cls.seconds * 1e3)) / 1e3,
        )


def span_exporter(settings: TraceSettings) -> SpanExporter:
    """The exporter to the collector of the settings. Raises ConfigError: a variable cannot be used."""
    # The SDK warns at every retry while a collector is away; the tracer warns once, and counts.
    logging.getLogger("opentelemetry.exporter.otlp.proto.http").setLevel(logging.CRITICAL)
    for variable in ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        protocol = os.environ.get(variable)
        if protocol not in (None, "", "http/protobuf"):
            _log.warning("%s is %s; spans are sent as http/protobuf, usually to port 4318", variable, protocol)
    endpoint = settings.endpoint
    if endpoint is not None:
        endpoint = endpoint.removesuffix(_PATH).rstrip("/") + _PATH
    try:
        return OTLPSpanExporter(endpoint=endpoint)
    except (ValueError, OSError) as error:
        raise ConfigError(f"OTEL_EXPORTER_OTLP_*: cannot be used ({error})") from error


def resource() -> Resource:
    """The sender of the spans; `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` win over our name."""
    attributes = {"service.version": __version__}
    pairs = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "").split(",")
    if not os.environ.get("OTEL_SERVICE_NAME") and "service.name" not in {_key(pair) for pair in pairs}:
        attributes["service.name"] = "adaptspec"
    return Resource.create(attributes)


def _key(pair: str) -> str:
    return pair.partition("=")[0].strip()


def _number(variable: str, default: int) -> int:
    text = os.environ.get(variable, "").strip()
    if not text:
        return default
    number = int(text) if text.isdecimal() and len(text) <= _MAX_DIGITS else 0
    if not number:
        raise ConfigError(
            f"{variable} is {text[:_MAX_SHOWN]!r}; it must be a positive whole number of at most {_MAX_DIGITS} digits, "
            "or be left out"
        )
    return number

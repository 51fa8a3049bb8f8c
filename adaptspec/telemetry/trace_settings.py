"""How much is traced, and where spans and metrics go: our own options beside the standard `OTEL_*` variables."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from enum import Enum

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource

from adaptspec import __version__
from adaptspec.errors import ConfigError

_log = logging.getLogger(__name__)


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
    endpoint: str | None = None
    slow_seconds: float | None = None
    round_share: float = 1.0
    content: bool = False

    @property
    def enabled(self) -> bool:
        """Whether anything is traced."""
        return self.level is not TraceLevel.OFF and _wanted("TRACES", self.endpoint)

    def exporter(self) -> OTLPSpanExporter:
        """What sends spans. Raises ConfigError for a variable that cannot be used."""
        _prepare("TRACES")
        try:
            return OTLPSpanExporter(endpoint=_place(self.endpoint, "traces"))
        except (ValueError, OSError) as error:
            raise ConfigError(f"OTEL_EXPORTER_OTLP_*: cannot be used ({error})") from error


@dataclass(frozen=True)
class PushSettings:
    """Whether metrics are sent as well (`OTEL_METRICS_EXPORTER=otlp` asks for it, too), and where to."""

    wanted: bool = False
    endpoint: str | None = None

    @property
    def enabled(self) -> bool:
        """Whether metrics are sent."""
        asked = self.wanted or os.environ.get("OTEL_METRICS_EXPORTER", "") == "otlp"
        return asked and not _disabled()

    def exporter(self) -> OTLPMetricExporter:
        """What sends metrics. Raises ConfigError for a variable that cannot be used."""
        _prepare("METRICS")
        try:
            return OTLPMetricExporter(endpoint=_place(self.endpoint, "metrics"))
        except (ValueError, OSError) as error:
            raise ConfigError(f"OTEL_EXPORTER_OTLP_*: cannot be used ({error})") from error


def resource() -> Resource:
    """Who says all this; `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` win over ours."""
    ours = {"service.version": __version__}
    if not os.environ.get("OTEL_SERVICE_NAME") and "service.name" not in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", ""):
        ours["service.name"] = "adaptspec"
    return Resource.create(ours)


def number(variable: str, default: int) -> int:
    """A positive whole number from the environment.

    Raises:
        ConfigError: it is none.
    """
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


def _place(endpoint: str | None, signal: str) -> str | None:
    """The URL of a signal below a collector's; None leaves it to the environment."""
    if endpoint is None:
        return None
    if not endpoint.startswith(("http://", "https://")):
        raise ConfigError(f"--otlp-endpoint {endpoint}: give a URL such as http://localhost:4318")
    path = f"/v1/{signal}"
    return endpoint if endpoint.endswith(path) else endpoint.rstrip("/") + path


def _prepare(signal: str) -> None:
    # It warns at every try of a collector that is away; who sends says it once, and counts.
    logging.getLogger("opentelemetry.exporter.otlp.proto.http").setLevel(logging.CRITICAL)
    for variable in (f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        protocol = os.environ.get(variable)
        if protocol not in (None, "", "http/protobuf"):
            _log.warning("%s is %s; only http/protobuf is spoken here, usually on port 4318", variable, protocol)

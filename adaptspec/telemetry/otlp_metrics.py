"""Metrics pushed over OTLP: what `/metrics` shows, translated and sent at intervals by a thread of its own."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client import Metric as Family
from prometheus_client.samples import Sample

from adaptspec import __version__
from adaptspec.telemetry.otlp_export import number, resource

_log = logging.getLogger(__name__)
_CONVENTIONS = "gen_ai_server_"
_SECONDS = "_seconds"
_CUMULATIVE = AggregationTemporality.CUMULATIVE


class MetricsPush:
    """Sends every `OTEL_METRIC_EXPORT_INTERVAL` milliseconds (60,000), and once more at the end."""

    def __init__(self, families: Callable[[], Iterable[Family]], exporter: OTLPMetricExporter) -> None:
        """Raises ConfigError: the interval is no positive number."""
        self._families = families
        self._exporter = exporter
        self._interval = number("OTEL_METRIC_EXPORT_INTERVAL", 60_000) / 1e3
        self._began = time.time_ns()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="adaptspec-metrics", daemon=True)
        self.failed = 0

    def start(self) -> None:
        self._thread.start()

    def close(self, seconds: float = 1.0) -> None:
        """Send once more, in `seconds` at most."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(seconds)
        self._exporter.shutdown()

    def push(self) -> None:
        """Send what is counted now. What cannot be sent is lost; the next time the sums are all there again."""
        scope = ScopeMetrics(InstrumentationScope("adaptspec", __version__), list(self._metrics()), "")
        data = MetricsData([ResourceMetrics(resource(), [scope], "")])
        if self._exporter.export(data) is not MetricExportResult.SUCCESS:
            self.failed += 1
            if self.failed == 1:
                _log.warning("metrics cannot be sent (see the OTLP endpoint); their sums go out when they can")

    def _run(self) -> None:
        while True:
            last = self._closing.wait(self._interval)
            try:
                self.push()
            except Exception:  # noqa: BLE001 - a thread that ends would send nothing any more
                self.failed += 1
                _log.exception("metrics could not be sent")
            if last:
                return

    def _metrics(self) -> Iterator[Metric]:
        now = time.time_ns()
        for family in self._families():
            name, unit = otlp_name(family.name)
            samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            data: Sum | Gauge | Histogram
            if family.type == "histogram":
                data = Histogram(list(self._histograms(samples, now)), _CUMULATIVE)
            elif family.type == "counter":
                data = Sum([self._number(sample, now) for sample in samples], _CUMULATIVE, is_monotonic=True)
            else:
                data = Gauge([self._number(sample, now) for sample in samples])
            yield Metric(name, family.documentation, unit, data)

    def _number(self, sample: Sample, now: int) -> NumberDataPoint:
        return NumberDataPoint(attributes_of(sample.labels), self._began, now, float(sample.value))

    def _histograms(self, samples: Iterable[Sample], now: int) -> Iterator[HistogramDataPoint]:
        """One point per set of labels; buckets come summed up to their bounds, and go out apart."""
        series: dict[tuple[tuple[str, str], ...], dict[str, float]] = {}
        for sample in samples:
            labels = {key: value for key, value in sample.labels.items() if key != "le"}
            found = series.setdefault(tuple(sorted(labels.items())), {})
            found[sample.labels.get("le", sample.name.rpartition("_")[2])] = sample.value
        for key, values in series.items():
            total, count = values.pop("sum"), values.pop("count")
            bounds = sorted(values, key=float)
            ups = [0.0, *(values[bound] for bound in bounds)]
            yield HistogramDataPoint(
                attributes=attributes_of(dict(key)),
                start_time_unix_nano=self._began,
                time_unix_nano=now,
                count=int(count),
                sum=total,
                bucket_counts=[int(up - low) for low, up in itertools.pairwise(ups)],
                explicit_bounds=[float(bound) for bound in bounds[:-1]],
                min=None,  # type: ignore[arg-type]  # nobody kept them, and the wire format may leave them out
                max=None,  # type: ignore[arg-type]
            )


def otlp_name(name: str) -> tuple[str, str]:
    """A family's name and unit; those of the GenAI conventions get their dots back."""
    if name.startswith(_CONVENTIONS):
        return name.removesuffix(_SECONDS).replace(_CONVENTIONS, "gen_ai.server."), "s"
    return name, "s" if name.endswith(_SECONDS) else ""


def attributes_of(labels: Mapping[str, str]) -> dict[str, str]:
    """Labels as attributes: empty ones are none, and GenAI's get their dots back."""
    return {_DOTTED.get(key, key): value for key, value in labels.items() if value}


_DOTTED = {
    "gen_ai_operation_name": "gen_ai.operation.name",
    "gen_ai_provider_name": "gen_ai.provider.name",
    "gen_ai_request_model": "gen_ai.request.model",
    "error_type": "error.type",
}

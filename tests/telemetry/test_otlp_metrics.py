"""Metrics over OTLP: what `/metrics` shows, in the words of the conventions, against a real receiver."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from adaptspec.decision import Reason
from adaptspec.request import Request
from adaptspec.results import Completion, FinishReason, SpeculationStats, Timings
from adaptspec.telemetry.metrics import GENAI_FIRST_TOKEN, Metrics
from adaptspec.telemetry.otlp_export import PushSettings
from adaptspec.telemetry.otlp_metrics import MetricsPush
from tests.telemetry.feeding import counted
from tests.telemetry.otlp import collecting, plain
from tests.telemetry.test_totals import record


def filled() -> Metrics:
    ends = [
        Completion("r", "", (1, 2), 3, FinishReason.STOP, SpeculationStats(), Timings(0.0, 0.0, first, first + 1.0))
        for first in (0.003, 0.3, 999.0)
    ]
    request = Request("r", (1,), operation="chat")
    return counted(record([(3, 3, 2, 3, Reason.POLICY)]), *((request, end) for end in ends), model_name="tiny")


def by_name(sent: ExportMetricsServiceRequest) -> dict[str, Any]:
    return {
        metric.name: metric
        for group in sent.resource_metrics
        for scope in group.scope_metrics
        for metric in scope.metrics
    }


def test_what_is_counted_is_sent() -> None:
    """Sums as they are, histograms with the bounds of the conventions and a count for each bucket."""
    with collecting() as collector:
        push = MetricsPush(filled().families, PushSettings(True, collector.url).exporter())
        push.push()
        push.close()
    (sent,) = collector.metrics
    found = by_name(sent)
    drafted = found["adaptspec_spec_decode_draft_tokens"].sum
    assert (drafted.is_monotonic, drafted.data_points[0].as_double) == (True, 3.0)
    first = found["gen_ai.server.time_to_first_token"]
    (point,) = first.histogram.data_points
    assert first.unit == "s"
    assert list(point.explicit_bounds) == list(GENAI_FIRST_TOKEN)
    assert sum(point.bucket_counts) == point.count == 3
    assert [point.bucket_counts[i] for i in (1, 9, len(GENAI_FIRST_TOKEN))] == [1, 1, 1]
    assert point.sum == pytest.approx(999.303)
    assert plain(point.attributes) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "adaptspec",
        "gen_ai.request.model": "tiny",
    }

"""Metrics over OTLP: what `/metrics` shows, in the words of the conventions, against a real receiver."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from adaptspec.errors import ConfigError
from adaptspec.request import Request
from adaptspec.telemetry.metrics import GENAI_FIRST_TOKEN, Metrics
from adaptspec.telemetry.otlp_export import PushSettings
from adaptspec.telemetry.otlp_metrics import MetricsPush, attributes_of, otlp_name
from adaptspec.types import Completion, FinishReason, Reason, SpeculationStats, Timings
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


def test_the_last_word_is_sent_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that lives for less than an interval is counted, too."""
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "60000")
    with collecting() as collector:
        push = MetricsPush(filled().families, PushSettings(True, collector.url).exporter())
        push.start()
        push.close(5.0)
    assert len(collector.metrics) == 1


def test_a_collector_that_refuses_is_counted_and_told_once(caplog: Any) -> None:
    with collecting(400) as collector:
        push = MetricsPush(filled().families, PushSettings(True, collector.url).exporter())
        push.push()
        push.push()
        push.close()
    assert push.failed == 2
    assert caplog.text.count("cannot be sent") == 1


def test_a_fault_of_ours_ends_no_thread(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "1")
    tried = threading.Semaphore(0)

    def broken() -> list[Any]:
        tried.release()
        raise RuntimeError("no families")

    with collecting() as collector:
        push = MetricsPush(broken, PushSettings(True, collector.url).exporter())
        push.start()
        assert tried.acquire(timeout=5)
        assert tried.acquire(timeout=5)
        push.close(5.0)
    assert push.failed >= 2
    assert "no families" in caplog.text


def test_an_interval_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "-3")
    with pytest.raises(ConfigError, match="OTEL_METRIC_EXPORT_INTERVAL"):
        MetricsPush(filled().families, PushSettings(True, "http://127.0.0.1:9").exporter())


def test_names_get_their_dots_back() -> None:
    assert otlp_name("gen_ai_server_time_per_output_token_seconds") == ("gen_ai.server.time_per_output_token", "s")
    assert otlp_name("adaptspec_verify_seconds") == ("adaptspec_verify_seconds", "s")
    assert otlp_name("adaptspec_rounds") == ("adaptspec_rounds", "")
    assert attributes_of({"error_type": "", "depth": "3"}) == {"depth": "3"}

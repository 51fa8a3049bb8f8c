"""Where telemetry goes: our options and the standard variables; spans that cannot go are counted, and nobody waits."""

from __future__ import annotations

import time
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider

from adaptspec.errors import ConfigError
from adaptspec.telemetry.otlp_export import PushSettings, SpanQueue, TraceLevel, TraceSettings, resource
from tests.telemetry.otlp import collecting

URL = "http://127.0.0.1:4318"


@pytest.mark.parametrize(
    ("settings", "environment", "enabled"),
    [
        (TraceSettings(), {}, False),
        (TraceSettings(endpoint=URL), {}, True),
        (TraceSettings(TraceLevel.OFF, URL), {}, False),
        (TraceSettings(), {"OTEL_EXPORTER_OTLP_ENDPOINT": URL}, True),
        (TraceSettings(), {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": URL}, True),
        (TraceSettings(), {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": URL}, False),
        (TraceSettings(endpoint=URL), {"OTEL_SDK_DISABLED": "true"}, False),
        (TraceSettings(endpoint=URL), {"OTEL_TRACES_EXPORTER": "none"}, False),
    ],
)
def test_traces_are_sent_where_somebody_said_so(
    settings: TraceSettings, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, *, enabled: bool
) -> None:
    """Nothing leaves the machine unasked."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert settings.enabled is enabled


def test_what_is_no_url_is_refused() -> None:
    for settings in (TraceSettings(endpoint="localhost:4318"), PushSettings(True, "grpc://x")):
        with pytest.raises(ConfigError, match="such as http://localhost:4318"):
            settings.exporter()


def test_other_protocols_are_told_of(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """The variable may be there for other programs: it stops nobody."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    TraceSettings(endpoint=URL).exporter()
    assert "only http/protobuf" in caplog.text


def test_the_service_has_our_name_unless_it_has_another(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resource().attributes["service.name"] == "adaptspec"
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=chatty")
    assert resource().attributes["service.name"] == "chatty"
    monkeypatch.setenv("OTEL_SERVICE_NAME", "other")
    assert resource().attributes["service.name"] == "other"


def spans(queue: SpanQueue, count: int) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(queue)
    tracer = provider.get_tracer("test")
    for _ in range(count):
        tracer.start_span("s").end()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")


def test_what_is_taken_is_counted() -> None:
    with collecting() as collector:
        queue = SpanQueue(TraceSettings(endpoint=collector.url).exporter())
        spans(queue, 1200)
        queue.close(5.0)
    assert (queue.exported, queue.dropped, len(collector.spans)) == (1200, 0, 1200)
    assert collector.requests >= 3  # 512 at a time


def test_a_collector_that_refuses_costs_spans_only() -> None:
    with collecting(400) as collector:
        queue = SpanQueue(TraceSettings(endpoint=collector.url).exporter())
        spans(queue, 100)
        queue.close(5.0)
    assert (queue.exported, queue.dropped) == (0, 100)


@pytest.mark.parametrize("stalled", [True, False])
def test_one_that_hangs_or_is_away_is_left_behind_at_the_end(monkeypatch: pytest.MonkeyPatch, *, stalled: bool) -> None:
    """The queue stays as small as it was said to be, all that does not fit is counted, and closing is bounded."""
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "50")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "10")
    with collecting(stall=True) as collector:
        url = collector.url if stalled else "http://127.0.0.1:9"
        queue = SpanQueue(TraceSettings(endpoint=url).exporter())
        spans(queue, 10)
        time.sleep(0.05)  # the first lot is on its way
        spans(queue, 400)
        assert queue.dropped >= 350
        begun = time.monotonic()
        queue.close(0.2)
        assert time.monotonic() - begun < 3.0


def test_a_full_lot_leaves_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """More spans than the queue holds come within one delay, and all are sent: also where it holds less than a lot."""
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "60000")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "512")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "400")
    with collecting() as collector:
        queue = SpanQueue(TraceSettings(endpoint=collector.url).exporter())
        for _ in range(9):
            spans(queue, 100)
            time.sleep(0.2)
        queue.close(5.0)
    assert (queue.exported, queue.dropped) == (900, 0)

"""Settings of traces: our options and the standard variables."""

from __future__ import annotations

from typing import Any

import pytest

from adaptspec.errors import ConfigError
from adaptspec.telemetry.otlp import BatchSettings, TraceLevel, TraceSettings, resource, span_exporter

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
def test_traces_are_sent_only_to_a_collector_that_was_named(
    settings: TraceSettings, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, *, enabled: bool
) -> None:
    """Nothing leaves the machine unasked."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert settings.enabled is enabled


def test_another_protocol_is_a_warning(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """The variable may be meant for other programs."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    span_exporter(TraceSettings(endpoint=URL))
    assert "OTEL_EXPORTER_OTLP_PROTOCOL is grpc; spans are sent as http/protobuf" in caplog.text


def test_the_service_has_our_name_unless_it_has_another(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resource().attributes["service.name"] == "adaptspec"
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.namespace=prod")
    assert resource().attributes["service.name"] == "adaptspec"
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.namespace=prod, service.name=chatty")
    assert resource().attributes["service.name"] == "chatty"
    monkeypatch.setenv("OTEL_SERVICE_NAME", "other")
    assert resource().attributes["service.name"] == "other"


def test_batches_follow_the_standard_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    assert BatchSettings.from_environment() == BatchSettings(512, 2048, 5.0)
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "3")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", " 7 ")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "250")
    assert BatchSettings.from_environment() == BatchSettings(3, 7, 0.25)


@pytest.mark.parametrize("value", ["soon", "0", "-1", "9" * 5000])
def test_a_batch_size_must_be_a_positive_number(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", value)
    with pytest.raises(ConfigError, match=r"OTEL_BSP_SCHEDULE_DELAY is '.{1,40}'; it must be a positive"):
        BatchSettings.from_environment()

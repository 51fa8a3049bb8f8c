"""Where telemetry goes: our options and the standard variables."""

from __future__ import annotations

from typing import Any

import pytest

from adaptspec.errors import ConfigError
from adaptspec.telemetry.trace_settings import PushSettings, TraceLevel, TraceSettings, resource

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


def test_metrics_are_sent_only_if_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not PushSettings(endpoint=URL).enabled
    assert PushSettings(True, URL).enabled
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "otlp")
    assert PushSettings().enabled
    monkeypatch.setenv("OTEL_SDK_DISABLED", "TRUE")
    assert not PushSettings(True, URL).enabled


@pytest.mark.parametrize("given", [URL, URL + "/", URL + "/v1/traces"])
def test_an_endpoint_is_a_collector_or_the_place_itself(given: str) -> None:
    assert TraceSettings(endpoint=given).exporter()._endpoint == URL + "/v1/traces"


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

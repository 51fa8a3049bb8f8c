"""The dashboard as a whole: its rows, and what can be chosen above them."""

from __future__ import annotations

import json

from adaptspec.telemetry.grafana.earning import EARNINGS
from adaptspec.telemetry.grafana.overview import GLANCE, SPEED
from adaptspec.telemetry.grafana.panels import SCHEMA_VERSION, Json, placed, source_variable, variable
from adaptspec.telemetry.grafana.serving import SERVER
from adaptspec.telemetry.grafana.speculating import POLICIES, SPECULATION

UID = "adaptspec"


def dashboard() -> Json:
    """The whole dashboard."""
    return {
        "uid": UID,
        "title": "AdaptSpec",
        "description": "Speculative decoding that decides for itself: what it decides, why, and what it earns.",
        "tags": ["adaptspec", "llm", "speculative-decoding"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": []},
        "links": [],
        "templating": {
            "list": [
                source_variable(),
                variable("job", "Job", "adaptspec_rounds_total", {}),
                variable("instance", "Instance", "adaptspec_rounds_total", {"job": "$job"}),
            ]
        },
        "panels": placed([GLANCE, SPEED, EARNINGS, SPECULATION, POLICIES, SERVER]),
    }


def dashboard_text() -> str:
    """The dashboard as the file holds it."""
    return json.dumps(dashboard(), indent=2) + "\n"

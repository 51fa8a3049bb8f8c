"""Print the dashboard: `python -m adaptspec.telemetry.grafana > dashboards/adaptspec.json`."""

from __future__ import annotations

import sys

from adaptspec.telemetry.grafana.dashboard import dashboard_text

sys.stdout.write(dashboard_text())

"""The Grafana dashboard, as code: `python -m adaptspec.telemetry.grafana > dashboards/adaptspec.json` writes it."""

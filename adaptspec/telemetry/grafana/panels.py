"""Panels of a Grafana dashboard, and their places. Knows Grafana's JSON; it does not know what is worth showing.

Source: Grafana's dashboard JSON model, schema version 39.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

SCHEMA_VERSION = 39
SOURCE = {"type": "prometheus", "uid": "${DS_PROMETHEUS}"}
WIDTH = 24  # columns of Grafana's grid

Json = dict[str, Any]


@dataclass(frozen=True)
class Query:
    """One PromQL expression, and what its curves are called: text with {{label}} in it."""

    expr: str
    legend: str = ""


@dataclass(frozen=True)
class Panel:
    """One panel. `unit` is Grafana's name of it; `width` of 24, `height` in rows of 30 pixels.

    `stack` adds curves up. `bounds` are (from, colour) steps, drawn as colours of the value, the first from minus
    infinity on.
    """

    title: str
    description: str
    unit: str
    queries: Sequence[Query]
    kind: Literal["timeseries", "stat"] = "timeseries"
    width: int = 8
    height: int = 8
    stack: bool = False
    least: float | None = 0.0
    most: float | None = None
    decimals: int | None = None
    bounds: Sequence[tuple[float | None, str]] = field(default=((None, "green"),))

    def to_json(self, number: int, x: int, y: int) -> Json:
        """What Grafana reads."""
        return {
            "id": number,
            "type": self.kind,
            "title": self.title,
            "description": self.description,
            "datasource": SOURCE,
            "gridPos": {"x": x, "y": y, "w": self.width, "h": self.height},
            "fieldConfig": {"defaults": self._field(), "overrides": []},
            "options": self._options(),
            "targets": [
                {
                    "refId": chr(ord("A") + i),
                    "datasource": SOURCE,
                    "expr": query.expr,
                    "legendFormat": query.legend or "__auto",
                    "range": self.kind == "timeseries",
                    "instant": self.kind != "timeseries",
                }
                for i, query in enumerate(self.queries)
            ],
        }

    def _field(self) -> Json:
        steps = [{"value": value, "color": colour} for value, colour in self.bounds]
        plain: Json = {"unit": self.unit, "thresholds": {"mode": "absolute", "steps": steps}}
        plain |= {
            name: value
            for name, value in (("min", self.least), ("max", self.most), ("decimals", self.decimals))
            if value is not None
        }
        if self.kind != "timeseries":
            return plain | {"color": {"mode": "thresholds"}}
        drawn = {
            "lineWidth": 1,
            "fillOpacity": 40 if self.stack else 8,
            "showPoints": "never",
            "spanNulls": False,
            "stacking": {"mode": "normal" if self.stack else "none", "group": "A"},
        }
        return plain | {"color": {"mode": "palette-classic"}, "custom": drawn}

    def _options(self) -> Json:
        if self.kind == "timeseries":
            legend = {"showLegend": True, "displayMode": "list", "placement": "bottom", "calcs": []}
            return {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}
        newest = {"calcs": ["lastNotNull"], "fields": "", "values": False}
        return {"reduceOptions": newest, "colorMode": "value", "graphMode": "none", "textMode": "value"}


def figure(
    title: str,
    description: str,
    unit: str,
    expr: str,
    *,
    decimals: int = 0,
    bounds: Sequence[tuple[float | None, str]] = ((None, "green"),),
) -> Panel:
    """A small panel with one number, as it stands now."""
    return Panel(title, description, unit, [Query(expr)], "stat", 4, 4, decimals=decimals, bounds=bounds)


@dataclass(frozen=True)
class Row:
    """Panels under a title, from left to right, in as many lines as they need."""

    title: str
    panels: Sequence[Panel]


def placed(rows: Sequence[Row]) -> list[Json]:
    """All panels at their places, each under the title of its row; ids count up from 1."""
    found: list[Json] = []
    y = 0
    for row in rows:
        title = {"id": len(found) + 1, "type": "row", "title": row.title, "collapsed": False, "panels": []}
        found.append(title | {"gridPos": {"x": 0, "y": y, "w": WIDTH, "h": 1}})
        y, x, tallest = y + 1, 0, 0
        for panel in row.panels:
            if x + panel.width > WIDTH:
                y, x, tallest = y + tallest, 0, 0
            found.append(panel.to_json(len(found) + 1, x, y))
            x, tallest = x + panel.width, max(tallest, panel.height)
        y += tallest
    return found


def variable(name: str, label: str, metric: str, by: Mapping[str, str]) -> Json:
    """A choice of a label's values, all of them at first; `by` narrows them by other variables."""
    narrowed = ",".join(f'{key}=~"{value}"' for key, value in by.items())
    query = f"label_values({metric}{{{narrowed}}}, {name})" if narrowed else f"label_values({metric}, {name})"
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": "StandardVariableQuery"},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def source_variable() -> Json:
    """Which Prometheus to ask: what `${DS_PROMETHEUS}` stands for, without any edits."""
    return {
        "name": "DS_PROMETHEUS",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "refresh": 1,
        "current": {},
        "hide": 0,
        "includeAll": False,
        "multi": False,
    }

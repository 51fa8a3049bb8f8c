"""The committed dashboard: generated, well-formed, and asking only for what a server exports."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from adaptspec.telemetry.grafana.dashboard import UID, dashboard, dashboard_text
from tests.telemetry.grafana.exported import exported, unknown
from tests.telemetry.grafana.test_panels import overlapping

FILE = Path(__file__).parents[3] / "dashboards" / "adaptspec.json"
# Grafana's names of the units in use; it shows figures of a unit that it does not know with the name behind them.
UNITS = {"short", "percentunit", "s", "reqps"}


@pytest.fixture
def panels() -> list[dict[str, Any]]:
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def test_the_file_is_what_the_code_says() -> None:
    """Write it anew with: python -m adaptspec.telemetry.grafana > dashboards/adaptspec.json."""
    assert FILE.read_text() == dashboard_text()


def test_it_can_be_imported_anywhere() -> None:
    """A fixed uid, so that an import replaces what was there; no data source of somebody's own."""
    whole = dashboard()
    assert whole["uid"] == UID
    assert whole["schemaVersion"] >= 39
    assert "id" not in whole
    names = [variable["name"] for variable in whole["templating"]["list"]]
    assert names == ["DS_PROMETHEUS", "job", "instance"]
    assert set(re.findall(r'"uid": "([^"]*)"', json.dumps(whole))) == {UID, "${DS_PROMETHEUS}"}


def test_every_panel_says_what_it_shows(panels: list[dict[str, Any]]) -> None:
    """A title, a sentence or two, a unit, and a name for each of several curves."""
    for panel in panels:
        assert panel["title"]
        assert panel["description"].endswith(".")
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
        legends = [target["legendFormat"] for target in panel["targets"]]
        assert len(set(legends)) == len(legends) > 0
    titles = [(panel["type"], panel["title"]) for panel in panels]
    assert len(set(titles)) == len(titles)


def test_panels_have_places_and_ids_of_their_own() -> None:
    """Titles of rows included."""
    panels = dashboard()["panels"]
    assert not overlapping(panels)
    assert len({panel["id"] for panel in panels}) == len(panels)


async def test_every_query_is_answered(
    panels: list[dict[str, Any]], target_path: Path, draft_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a metric that a server exports, with labels that it has; by legends, too."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    known = await exported(target_path, draft_path, tmp_path)
    queries = [(target["expr"], target["legendFormat"]) for panel in panels for target in panel["targets"]]
    for expr, legend in queries:
        assert not unknown(expr, known), expr
        grouped = {label for part in re.findall(r"by \(([^)]*)\)", expr) for label in re.findall(r"\w+", part)}
        assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= grouped, legend
        assert "$job" in expr
    assert len(queries) > 30

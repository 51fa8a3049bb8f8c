"""Panels find places of their own, and say what Grafana needs."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from adaptspec.telemetry.grafana.panels import Panel, Query, Row, figure, placed

PANELS = st.builds(
    lambda width, height: Panel("t", "d", "s", [Query("1")], width=width, height=height),
    st.integers(1, 24),
    st.integers(1, 10),
)
ROWS = st.lists(st.builds(Row, st.just("r"), st.lists(PANELS, max_size=6)), max_size=4)


def overlapping(panels: list[dict[str, Any]]) -> list[tuple[int, int]]:
    """Ids of panels that cover each other."""
    places = [(panel["id"], *(panel["gridPos"][key] for key in "xywh")) for panel in panels]
    return [
        (one, other)
        for i, (one, x, y, w, h) in enumerate(places)
        for other, u, v, s, t in places[i + 1 :]
        if x < u + s and u < x + w and y < v + t and v < y + h
    ]


@given(ROWS)
def test_no_two_cover_each_other(rows: list[Row]) -> None:
    """Grafana would push them about, and the dashboard would look different each time it is opened."""
    panels = placed(rows)
    assert not overlapping(panels)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)
    assert [panel["id"] for panel in panels] == list(range(1, len(panels) + 1))


def test_a_figure_is_asked_for_once_and_a_curve_over_time() -> None:
    """A stat panel with a range query would show the newest point of a curve, and cost as much."""
    one = figure("t", "d", "s", "up").to_json(1, 0, 0)["targets"][0]
    curve = Panel("t", "d", "s", [Query("up", "{{job}}"), Query("1")]).to_json(1, 0, 0)["targets"]
    assert (one["instant"], one["range"]) == (True, False)
    assert [(target["refId"], target["range"], target["legendFormat"]) for target in curve] == [
        ("A", True, "{{job}}"),
        ("B", True, "__auto"),
    ]

"""Plots: one panel per machine with every policy; without matplotlib the error says what to install."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest

from adaptspec.analysis.plot import plot_report
from adaptspec.analysis.report import Report, simulate
from adaptspec.errors import ConfigError
from adaptspec.simulation.cells import task_cells
from adaptspec.simulation.cost_profiles import load_costs
from adaptspec.simulation.replay import static_spec
from adaptspec.simulation.scenarios import Schedule
from tests.simulation.tapes import made_tape


class Axes:
    """Remembers what is drawn on it."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: self.calls.append((name, args, kwargs))

    @property
    def labels(self) -> list[str]:
        return [kwargs["label"] for name, _, kwargs in self.calls if name == "plot"]


class Figure:
    """A figure of such axes that can be saved."""

    made: ClassVar[list[Figure]] = []

    def __init__(self, **_: Any) -> None:
        Figure.made.append(self)

    def subplots(self, rows: int, squeeze: bool) -> Any:
        self.axes = [Axes() for _ in range(rows)]
        return _Column(self.axes)

    def savefig(self, path: Path) -> None:
        path.write_bytes(b"drawn")


class _Column:
    def __init__(self, axes: list[Axes]) -> None:
        self._axes = axes

    def __getitem__(self, key: Any) -> list[Axes]:
        return self._axes


@pytest.fixture(scope="module")
def report() -> Report:
    cells = task_cells(made_tape({"code": 0.6}, count=1), [Schedule((1,))])
    return simulate([static_spec(2)], cells, [load_costs("cpu-2-cores"), load_costs("gpu-8b")], depths=(0, 2))


def test_a_panel_per_machine_shows_references_and_policies(
    report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drawn on a stand-in for matplotlib, which is an optional extra."""
    module = ModuleType("matplotlib.figure")
    module.Figure = Figure  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "matplotlib", ModuleType("matplotlib"))
    monkeypatch.setitem(sys.modules, "matplotlib.figure", module)
    plot_report(report, tmp_path / "out.png")
    assert (tmp_path / "out.png").read_bytes() == b"drawn"
    panels = Figure.made[-1].axes
    assert [axes.labels for axes in panels] == [["best static tier", "clairvoyant", "static-2"]] * 2
    with pytest.raises(ConfigError, match="cannot be written"):
        plot_report(report, tmp_path / "missing" / "out.png")


def test_without_matplotlib_the_error_says_what_to_install(
    report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match=r"adaptspec\[bench\]"):
        plot_report(report, tmp_path / "out.png")

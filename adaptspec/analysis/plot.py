"""A picture of a report: goodput relative to plain decoding, cell by cell. Needs matplotlib."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from adaptspec.analysis.report import Report
from adaptspec.errors import ConfigError


def plotting() -> Any:
    """The figures of matplotlib.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    try:
        return importlib.import_module("matplotlib.figure")
    except ImportError as error:
        raise ConfigError("plots need matplotlib: pip install 'adaptspec[bench]', or leave out --plot") from error


def plot_report(report: Report, path: Path) -> None:
    """Draw one panel per machine into a file; its suffix (.png, .svg, .pdf) says which kind.

    Raises:
        ConfigError: matplotlib is not installed, or the file cannot be written.
    """
    figures = plotting()
    machines = list(dict.fromkeys(cell.machine for cell in report.cells))
    widest = max(sum(cell.machine == machine for cell in report.cells) for machine in machines)
    figure = figures.Figure(figsize=(max(6.0, 0.45 * widest + 2.0), 4.0 * len(machines)), layout="constrained")
    for axes, machine in zip(figure.subplots(len(machines), squeeze=False)[:, 0], machines, strict=True):
        cells = [cell for cell in report.cells if cell.machine == machine]
        places = range(len(cells))
        known = [cell.references for cell in cells]
        axes.axhline(1.0, color="grey", linewidth=0.8)
        for name, mark, values in (
            ("best static tier", "_", [own.best_static / own.off for own in known]),
            ("clairvoyant", "^", [(own.clairvoyant or float("nan")) / own.off for own in known]),
        ):
            axes.plot(places, values, mark, color="black", label=name)
        for policy in report.policies:
            axes.plot(places, [cell.over_off(policy) for cell in cells], "o", markersize=4, label=policy)
        axes.set_xticks(places, [f"{cell.work} @ {cell.batch}" for cell in cells], rotation=90, fontsize=7)
        axes.set_ylabel("goodput / off")
        axes.set_title(machine)
        axes.legend(fontsize=7)
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: the plot cannot be written ({error})") from error

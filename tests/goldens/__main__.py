"""Freezes what every shipped policy earns on the tape, and compares a change with it.

    python -m tests.goldens record            # once, before anything moves
    python -m tests.goldens compare           # after a change; --policy NAME, --json

Simulated, so the figures are the same on every machine. A difference counts only where its interval (a bootstrap over
the five splits) leaves 1 out: what is within it is noise, and nobody chooses a constant by it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

from adaptspec.control.language.library import shipped_policies
from tests.goldens.cells import SPLITS, Cell, cells, goodput

FILE = Path(__file__).parent / "goodput.json"
SEED, DRAWS = 0, 2000
Figures = dict[str, dict[str, list[float]]]  # by policy, by cell: tokens per second at each split


def main(arguments: Sequence[str] | None = None) -> int:
    """Record or compare; 1 where a cell lost more than the floors allow."""
    parser = argparse.ArgumentParser(prog="python -m tests.goldens", description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("record", "compare"))
    parser.add_argument("--policy", action="append", help="only these (default: all that ship)")
    parser.add_argument("--machine", help="only cells with these costs")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--mean", type=float, default=0.995, help="least mean over all cells (default: %(default)s)")
    parser.add_argument("--cell", type=float, default=0.97, help="least in one cell (default: %(default)s)")
    asked = parser.parse_args(arguments)
    wanted = [cell for cell in cells() if asked.machine in (None, cell.table)]
    names = asked.policy or sorted(path.stem for path in shipped_policies())
    if asked.what == "record":
        kept = json.loads(FILE.read_text()) if FILE.exists() else {}
        found = measure(names, wanted, asked.jobs)
        merged = {name: kept.get(name, {}) | found.get(name, {}) for name in sorted({*kept, *found})}
        FILE.write_text(written(merged))
        return 0
    before: Figures = json.loads(FILE.read_text())
    known = [name for name in names if name in before]
    for name in sorted({*names} - {*known}):
        sys.stderr.write(f"{name} is new: nothing to compare it with\n")
    for name in sorted({*before} - {*names}) if asked.policy is None else ():
        sys.stderr.write(f"{name} is gone\n")
    report = compared(before, measure(known, wanted, asked.jobs))
    sys.stdout.write(json.dumps(report, indent=1) + "\n" if asked.json else shown(report))
    return int(any(not holds(one, asked.mean, asked.cell) for one in report.values()))


def measure(names: Sequence[str], wanted: Sequence[Cell], jobs: int) -> Figures:
    """What these policies earn in these cells, at every split."""
    found: Figures = {}
    work = [(name, cell) for name in names for cell in wanted]
    with ProcessPoolExecutor(jobs) as pool:
        for number, (name, cell, figures) in enumerate(pool.map(_measured, work, chunksize=4), 1):
            found.setdefault(name, {})[str(cell)] = figures
            sys.stderr.write(f"\r{number} of {len(work)} cells")
    sys.stderr.write("\n")
    return found


def _measured(work: tuple[str, Cell]) -> tuple[str, Cell, list[float]]:
    name, cell = work
    return name, cell, [float(f"{goodput(name, cell, number):.6g}") for number in range(SPLITS)]


def compared(before: Figures, after: Figures) -> dict[str, dict[str, object]]:
    """By policy: the mean of all ratios after / before, its interval, and each cell's."""
    report: dict[str, dict[str, object]] = {}
    for name, figures in after.items():
        shared = [cell for cell in figures if cell in before[name]]
        ratios = np.array([np.divide(figures[cell], before[name][cell]) for cell in shared])  # [cells, splits]
        report[name] = {
            "mean": float(ratios.mean()),
            "interval": interval(ratios.mean(0)),
            "cells": {
                cell: {"ratio": float(own.mean()), "interval": interval(own)}
                for cell, own in zip(shared, ratios, strict=True)
            },
        }
    return report


def interval(ratios: np.ndarray) -> tuple[float, float]:
    """90 % of the bootstrap of the mean over splits."""
    drawn = np.random.default_rng(SEED).choice(ratios, (DRAWS, len(ratios))).mean(1)
    low, high = np.quantile(drawn, (0.05, 0.95))
    return float(low), float(high)


def holds(one: dict, mean: float, cell: float) -> bool:
    """Whether a policy kept its floors: a cell may lie below its own only where the interval reaches it."""
    return one["mean"] >= mean and all(own["interval"][1] >= cell for own in one["cells"].values())


def shown(report: dict) -> str:
    """A line per policy, and below it the cells that differ beyond their interval, worst first."""
    lines = []
    for name, one in report.items():
        low, high = one["interval"]
        lines.append(f"{name:20} {one['mean']:.4f}  ({low:.4f} to {high:.4f})  {len(one['cells'])} cells")
        differ = {
            cell: own for cell, own in one["cells"].items() if not own["interval"][0] <= 1.0 <= own["interval"][1]
        }
        for cell, own in sorted(differ.items(), key=lambda pair: pair[1]["ratio"]):
            low, high = own["interval"]
            lines.append(f"  {cell:44} {own['ratio']:.4f}  ({low:.4f} to {high:.4f})")
    return "\n".join(lines) + "\n"


def written(figures: Figures) -> str:
    """JSON with a line per cell, so that a change of the goldens can be read."""
    policies = []
    for name, own in figures.items():
        rows = ",\n".join(f"  {json.dumps(cell)}: {json.dumps(values)}" for cell, values in own.items())
        policies.append(f" {json.dumps(name)}: {{\n{rows}\n }}")
    return "{\n" + ",\n".join(policies) + "\n}\n"


if __name__ == "__main__":
    sys.exit(main())

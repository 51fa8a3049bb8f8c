"""Records what every shipped policy earns on the SmolLM2 tape, and compares a change with the record.

    python -m tests.policies.goldens record     # after an intended change
    python -m tests.policies.goldens compare    # --policy NAME, --only "| code |", --json
    python -m tests.policies.goldens show       # earnings by policy and cost table, as recorded

Earnings are tokens per simulated second over those of plain decoding, at five splits of the tape; they are the same on
every machine. A change is reported where the interval of after / before (90 %, a bootstrap over the splits) excludes 1
and its mean is more than a tolerance away from 1: one tolerance for a cell, a smaller one for a policy's mean over all
cells. Gains fail like losses: record them, so that a later loss is noticed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tests.policies.cells import SPLITS, TABLES, Cell, best_fixed, cells, goodput, plain_goodput, policies

FILE = Path(__file__).with_name("goldens.json")
PLAIN, BEST_FIXED = "plain decoding", "best fixed depth"
REFERENCES = {PLAIN: plain_goodput, BEST_FIXED: best_fixed}
CELL_TOLERANCE, MEAN_TOLERANCE = 0.01, 0.005
ALL = "all"  # in place of a cell: the mean over all of them
SEED, DRAWS = 0, 2000

Ratios = npt.NDArray[np.float64]
Figures = Mapping[str, Mapping[str, Sequence[float]]]  # tokens per second by policy or reference, cell, split
Interval = tuple[float, float, float]  # mean, low, high


@dataclass(frozen=True)
class Change:
    """A policy (or reference) earns something else in a cell. `before` and `after` are means over the splits: times
    plain decoding, or tokens per second for plain decoding itself; `ratio` is after / before with its interval.
    """

    policy: str
    cell: str
    before: float
    after: float
    ratio: Interval

    def __str__(self) -> str:
        mean, low, high = self.ratio
        values = f"{self.before:.4g} before, {self.after:.4g} after"
        return f"{self.policy} | {self.cell}: {values}; ratio {mean:.4f} ({low:.4f} to {high:.4f})"


def measure(names: Sequence[str], wanted: Sequence[Cell], jobs: int) -> Figures:
    """Tokens per second of policies and references in these cells, at every split, to six digits."""
    found: dict[str, dict[str, list[float]]] = {}
    work = [(name, cell) for name in names for cell in wanted]
    with ProcessPoolExecutor(jobs) as pool:
        for number, ((name, cell), figures) in enumerate(zip(work, pool.map(measured, work), strict=True), 1):
            found.setdefault(name, {})[str(cell)] = figures
            sys.stderr.write(f"\r{number} of {len(work)} cells")
    sys.stderr.write("\n")
    return found


def measured(work: tuple[str, Cell]) -> list[float]:
    """Tokens per second of one policy or reference in one cell, by split, to six digits."""
    name, cell = work
    run = REFERENCES.get(name)
    found = (goodput(name, cell, i) if run is None else run(cell, i) for i in range(SPLITS))
    return [float(f"{value:.6g}") for value in found]


def earnings(figures: Figures, name: str, over: str = PLAIN) -> dict[str, Ratios]:
    """By cell: what a policy earns at each split, times a reference. Plain decoding over itself: tokens per second."""
    if name == over:
        return {cell: np.array(values) for cell, values in figures[name].items()}
    return {cell: np.divide(values, figures[over][cell]) for cell, values in figures[name].items()}


def changes(before: Figures, after: Figures) -> Iterator[Change]:
    """All changes beyond their interval and the tolerance, in the cells that both have."""
    for name in after:
        old, new = earnings(before, name), earnings(after, name)
        shared = [cell for cell in new if cell in old]
        ratios = [new[cell] / old[cell] for cell in shared]
        for cell, own in zip(shared, ratios, strict=True):
            if changed(own, CELL_TOLERANCE):
                yield Change(name, cell, float(old[cell].mean()), float(new[cell].mean()), interval(own))
        if len(shared) > 1 and changed(np.mean(ratios, axis=0), MEAN_TOLERANCE):
            means = (float(np.mean([one[cell].mean() for cell in shared])) for one in (old, new))
            yield Change(name, ALL, *means, interval(np.mean(ratios, axis=0)))


def changed(ratios: Ratios, tolerance: float) -> bool:
    """Whether ratios by split differ from 1 by more than a tolerance and by more than noise."""
    mean, low, high = interval(ratios)
    return abs(mean - 1.0) > tolerance and not low <= 1.0 <= high


def interval(values: Ratios) -> Interval:
    """Mean of values by split, and the bounds of 90 % of its bootstrap."""
    drawn = np.random.default_rng(SEED).choice(values, (DRAWS, len(values))).mean(1)
    low, high = np.quantile(drawn, (0.05, 0.95))
    return float(values.mean()), float(low), float(high)


def summary(figures: Figures) -> dict[str, dict[str, dict[str, Interval]]]:
    """By policy and cost table: earnings over plain decoding and over the best fixed depth, means over all cells."""
    found: dict[str, dict[str, dict[str, Interval]]] = {}
    tables = dict.fromkeys(Cell.parse(cell).table for cell in figures[PLAIN])
    for name in figures:
        for table in tables if name not in REFERENCES else ():
            parts = {over: _of_table(earnings(figures, name, over), table) for over in REFERENCES}
            found.setdefault(name, {})[table] = {
                f"over {over}": tuple(round(value, 4) for value in interval(ratios)) for over, ratios in parts.items()
            }
    return found


def _of_table(ratios: Mapping[str, Ratios], table: str) -> Ratios:
    return np.mean([values for cell, values in ratios.items() if Cell.parse(cell).table == table], axis=0)


def written(figures: Figures) -> str:
    """JSON with one line per policy and table, and per policy and cell, so that diffs can be read."""
    parts = {"summary": summary(figures), "tokens_per_second": figures}
    return "{\n" + ",\n".join(f'"{name}": {{\n{_lines(part)}\n}}' for name, part in parts.items()) + "\n}\n"


def _lines(part: Mapping[str, Mapping[str, object]]) -> str:
    policies = []
    for name, own in part.items():
        rows = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in own.items())
        policies.append(f" {json.dumps(name)}: {{\n{rows}\n }}")
    return ",\n".join(policies)


def recorded() -> Figures:
    """The figures in the file."""
    figures: Figures = json.loads(FILE.read_text(encoding="utf-8"))["tokens_per_second"]
    return figures


def shown(figures: Figures) -> str:
    """A line per policy: over plain decoding and over the best fixed depth, by cost table."""
    lines = [f"{'':18}" + "".join(f"{table:>30}" for table in TABLES)]
    for name, tables in summary(figures).items():
        parts = ("  ".join(map(_short, own.values())) for own in tables.values())
        lines.append(f"{name:18}" + "".join(f"{part:>30}" for part in parts))
    return "\n".join(lines) + "\n"


def _short(values: Interval) -> str:
    mean, low, high = values
    return f"{mean:.3f} ±{(high - low) / 2:.3f}"


def record(names: Sequence[str], wanted: Sequence[Cell], jobs: int) -> int:
    """Measure and write; what was not asked for stays as it is, policies that are gone are left out."""
    kept = recorded() if FILE.exists() else {}
    found = measure(names, wanted, jobs)
    known = [name for name in (*REFERENCES, *policies()) if name in found or name in kept]
    merged = {name: in_order({**kept.get(name, {}), **found.get(name, {})}) for name in known}
    FILE.write_text(written(merged), encoding="utf-8")
    return 0


def in_order(own: Mapping[str, Sequence[float]]) -> Mapping[str, Sequence[float]]:
    """The figures of a policy in the order of `cells`; those of cells that are gone are left out."""
    return {str(cell): own[str(cell)] for cell in cells() if str(cell) in own}


def compare(names: Sequence[str], wanted: Sequence[Cell], jobs: int, *, as_json: bool) -> int:
    """Measure and print all changes; 1 if there are any, or if a policy has no record of a cell."""
    before = recorded()
    missing = [f"{name} | {cell}" for name in names for cell in wanted if str(cell) not in before.get(name, {})]
    after = measure([name for name in dict.fromkeys((PLAIN, *names)) if name in before], wanted, jobs)
    found = list(changes(before, after))
    if as_json:
        report = {"compared": list(after), "not recorded": missing, "changes": [asdict(change) for change in found]}
        sys.stdout.write(json.dumps(report, indent=1) + "\n")
    else:
        lines = [*map(str, found), *(f"{name} is not recorded" for name in missing)]
        lines.append(f"{len(after)} policies and references, {len(wanted)} cells, {len(found)} changes")
        sys.stdout.write("\n".join(lines) + "\n")
    return int(bool(found or missing))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; see the module."""
    parser = argparse.ArgumentParser(prog="python -m tests.policies.goldens", description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=("record", "compare", "show"))
    parser.add_argument("--policy", action="append", help="only these (default: all that ship, and the references)")
    parser.add_argument("--only", default="", metavar="TEXT", help="only cells with this in their name")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    asked = parser.parse_args(arguments)
    if asked.command == "show":
        sys.stdout.write(json.dumps(summary(recorded())) + "\n" if asked.json else shown(recorded()))
        return 0
    wanted = [cell for cell in cells() if asked.only in str(cell)]
    names = asked.policy or [*REFERENCES, *policies()]
    if asked.command == "record":
        return record(names, wanted, asked.jobs)
    return compare(names, wanted, asked.jobs, as_json=asked.json)


if __name__ == "__main__":
    sys.exit(main())

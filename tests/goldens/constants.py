"""How large the way of the default policy is, and whether its constants earn their place.

    python -m tests.goldens.constants                      # the default's path, its constants with their reasons
    python -m tests.goldens.constants --ablate [--only M]  # goodput with each of them halved and doubled

A constant is kept only if half or twice its value moves some cell by more than 1 %.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import adaptspec
from tests.goldens.cells import Cell, cells, goodput
from tests.policies.wrong_clocks import draw

ROOT = Path(adaptspec.__file__).parent
CONTROL = ROOT / "control"
POLICY = "goodput"
FACTORS = (0.5, 2.0)
MOVES = 0.01
SPLITS = 2  # of the tape, for each cell of an ablation
CLOCKS = (3, 6, 8)  # draws of wrong clocks: where a cost table is true, nothing of what mends one matters


@dataclass(frozen=True)
class Constant:
    """A number in the source that somebody chose."""

    path: Path
    line: int
    column: int
    end: int
    name: str
    text: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(CONTROL)}:{self.line} {self.name} = {self.text}"

    def scaled(self, factor: float) -> str:
        """The source of its file with another value."""
        value = ast.literal_eval(self.text)
        other = max(1, round(value * factor)) if isinstance(value, int) else value * factor
        lines = self.path.read_text(encoding="utf-8").splitlines(keepends=True)
        line = lines[self.line - 1]
        lines[self.line - 1] = line[: self.column] + repr(other) + line[self.end :]
        return "".join(lines)


def default_path() -> list[Path]:
    """Files of the control plane whose functions run when the default policy serves: found by serving."""
    seen: set[str] = set()

    def note(frame, event, _):
        if event == "call" and frame.f_code.co_name not in ("<module>", "<lambda>") and serving:
            seen.add(frame.f_code.co_filename)

    serving = True
    sys.setprofile(note)
    try:
        for cell in ("cpu-2-cores | mixed, in turn | 1", "cpu-2-cores | mixed, in turn | 16"):
            goodput(POLICY, Cell.parse(cell), 0)
    finally:
        sys.setprofile(None)
    return sorted(
        path
        for path in CONTROL.rglob("*.py")
        if str(path) in seen and not LANGUAGE & set(path.relative_to(CONTROL).parts)
    )


# What only reads a policy file and builds the policy.
LANGUAGE = {"language", "registry.py", "rollout.py"}


def constants(path: Path) -> Iterator[Constant]:
    """Numbers that are named: module and class constants, defaults of fields and of parameters."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    for name, node in _named(ast.parse(text)):
        powers = {id(one.right) for one in ast.walk(node) if isinstance(one, ast.BinOp) and isinstance(one.op, ast.Pow)}
        for number in ast.walk(node):
            chosen = isinstance(number, ast.Constant) and id(number) not in powers
            if chosen and type(number.value) in (int, float) and number.value not in (0, 1):
                own = lines[number.lineno - 1][number.col_offset : number.end_col_offset]
                reason = _reason(lines, number.lineno)
                yield Constant(path, number.lineno, number.col_offset, number.end_col_offset or 0, name, own, reason)


def _named(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    for node in ast.walk(tree):
        body = node.body if isinstance(node, ast.Module | ast.ClassDef) else []
        for one in body:
            if isinstance(one, ast.Assign) and one.value is not None:
                names = ast.unparse(one.targets[0])
                if names.strip("(_").split(",")[0].strip(")").isupper():
                    yield names, one.value
            elif isinstance(one, ast.AnnAssign) and isinstance(one.value, ast.Constant):
                yield ast.unparse(one.target), one.value
        if isinstance(node, ast.FunctionDef):
            arguments = [*node.args.posonlyargs, *node.args.args][-len(node.args.defaults) or None :]
            yield from zip((f"{node.name}({a.arg})" for a in arguments), node.args.defaults, strict=False)
            for one, value in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True):
                if value is not None:
                    yield f"{node.name}({one.arg})", value


def _reason(lines: list[str], number: int) -> str:
    """The comment behind a line, or the one above it."""
    at = number - 1
    if "#" in lines[at]:
        return lines[at].split("#", 1)[1].strip()
    words: list[str] = []
    while at and lines[at - 1].strip().startswith("#"):
        at -= 1
        words.insert(0, lines[at].strip("# \t"))
    return " ".join(words)


def earned() -> dict[str, float]:
    """Goodput in some cells, and over a true table's with wrong clocks."""
    wanted = [cell for cell in cells() if ("mixed" in cell.work or "wrong" in cell.work) and cell.batch in ("1", "16")]
    found = {str(cell): sum(goodput(POLICY, cell, split) for split in range(SPLITS)) for cell in wanted}
    return found | {f"wrong clocks {number}": draw(POLICY, number).over_off for number in CLOCKS}


def ablated(constant: Constant | None, factor: float = 1.0) -> dict[str, float]:
    """What is earned with one constant at `factor` times its value: in a copy of the sources, by another process."""
    with tempfile.TemporaryDirectory() as folder:
        for part in (ROOT, Path(__file__).parents[1], ROOT.parent / "policies"):
            shutil.copytree(part, Path(folder) / part.name, ignore=shutil.ignore_patterns("__pycache__"))
        if constant is not None:
            copy = Path(folder) / ROOT.name / constant.path.relative_to(ROOT)
            copy.write_text(constant.scaled(factor), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-m", "tests.goldens.constants", "--earned"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": folder, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
    # A value that breaks the policy has its place.
    found: dict[str, float] = json.loads(done.stdout) if not done.returncode else {}
    return found


def report_ablations(only: str | None, jobs: int) -> None:
    """A line per constant: the cell that moves most, and by how much."""
    chosen = [one for path in default_path() for one in constants(path) if only is None or only in str(one)]
    with ThreadPoolExecutor(jobs) as pool:
        usual = pool.submit(ablated, None).result()
        tried = [(one, [pool.submit(ablated, one, factor) for factor in FACTORS]) for one in chosen]
        for one, runs in tried:
            moved = [
                max(((abs(found.get(cell, 0.0) / before - 1.0), cell) for cell, before in usual.items()))
                for found in (run.result() for run in runs)
            ]
            most, where = max(moved)
            verdict = "keep" if most > MOVES else "GO  "
            sys.stdout.write(f"{verdict} {most:7.4f}  {one}  ({where})\n")
            sys.stdout.flush()


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ablate", action="store_true", help="halve and double each constant (minutes each)")
    parser.add_argument("--only", help="constants whose line has this in it")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: %(default)s)")
    parser.add_argument("--earned", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.earned:
        sys.stdout.write(json.dumps(earned()))
    elif asked.ablate:
        report_ablations(asked.only, asked.jobs)
    else:
        path = default_path()
        total = sum(len(one.read_text(encoding="utf-8").splitlines()) for one in path)
        sys.stdout.write(f"The default's path: {len(path)} files, {total:,} lines\n")
        for one in path:
            sys.stdout.write(f"{len(one.read_text(encoding='utf-8').splitlines()):7,}  {one.relative_to(CONTROL)}\n")
            for constant in constants(one):
                sys.stdout.write(f"           {constant.name} = {constant.text}: {constant.reason}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

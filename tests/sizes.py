"""Measures of the code's shape: `python -m tests.sizes` prints them. `test_style.py` enforces those that have a limit.

Line counts have none: they are printed for information.
"""

from __future__ import annotations

import ast
import asyncio
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import grimp

import adaptspec

ROOT, TESTS = Path(adaptspec.__file__).parent, Path(__file__).parent
LONG_FUNCTION, STEP = 40, 20
MOST_IN_FOLDER = 25
SINGLE_SHARE = 0.22
HOPS, RECORDS = 6, 10
OPTIONAL = ("matplotlib",)  # what may be imported in functions anywhere; commands import there what takes time
_CONTAINERS = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
_MAKERS = {"list", "dict", "set", "defaultdict", "Counter", "deque", "OrderedDict", "count"}
_CHANGES = {"append", "add", "update", "pop", "popitem", "setdefault", "clear", "extend", "insert", "remove", "discard"}


@dataclass(frozen=True)
class Source:
    """One file of the package."""

    path: Path
    text: str

    @property
    def name(self) -> str:
        """Its place in the package."""
        return str(self.path.relative_to(ROOT))

    @property
    def folder(self) -> str:
        """The first folder of its place; nothing for a module of the package itself."""
        return self.name.partition("/")[0] if "/" in self.name else ""

    @property
    def lines(self) -> int:
        return len(self.text.splitlines())

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)


def sources() -> list[Source]:
    """All files of the package."""
    return [Source(path, path.read_text(encoding="utf-8")) for path in sorted(ROOT.rglob("*.py"))]


def folder_sizes(files: list[Source]) -> dict[str, tuple[int, int]]:
    """Lines and files by folder; "" holds the modules of the package itself."""
    folders = sorted({file.folder for file in files})
    members = {folder: [file for file in files if file.folder == folder] for folder in folders}
    return {folder: (sum(file.lines for file in inside), len(inside)) for folder, inside in members.items()}


def full_folders(files: list[Source]) -> dict[str, int]:
    """Folders with too many files, those of their folders not counted."""
    counts = Counter(str(file.path.parent.relative_to(ROOT)) for file in files)
    return {folder: count for folder, count in counts.items() if count > MOST_IN_FOLDER}


def functions(file: Source) -> Iterator[tuple[str, int]]:
    """Every function's place and how many lines it has, its docstring and those of its functions included."""
    for node in ast.walk(file.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{file.name}:{node.lineno} {node.name}", (node.end_lineno or 0) - node.lineno + 1


def step_lines(files: list[Source]) -> int:
    """Lines of the engine's main loop, a function called `step`, without its docstring."""
    found = [
        (node.end_lineno or 0) - node.lineno + 1 - len((ast.get_docstring(node) or "").splitlines())
        for file in files
        if file.folder == "engine"
        for node in ast.walk(file.tree)
        if isinstance(node, ast.FunctionDef) and node.name == "step"
    ]
    return max(found)


def untested(files: list[Source]) -> list[str]:
    """Modules without a test of their own at the same place under tests/."""
    places = {file.name: TESTS / file.path.relative_to(ROOT).with_name(f"test_{file.path.name}") for file in files}
    return [name for name, place in places.items() if not place.exists() and not name.endswith("__.py")]


def repeated_names(files: list[Source]) -> dict[str, list[str]]:
    """File names that occur more than once."""
    by_name: dict[str, list[str]] = {}
    for file in files:
        by_name.setdefault(file.path.name, []).append(file.name)
    return {name: found for name, found in by_name.items() if len(found) > 1 and name != "__init__.py"}


def imports() -> dict[str, Set[str]]:
    """What each module imports of ours: those inside functions and for types counted."""
    graph = grimp.build_graph("adaptspec", exclude_type_checking_imports=False, cache_dir=None)
    return {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}


def modules_in_cycles(imports: Mapping[str, Set[str]]) -> set[str]:
    """Modules that import each other in a circle, and those that lead from one circle to another."""
    left = {module: set(targets) for module, targets in imports.items()}
    while True:
        importing = {module for module, targets in left.items() if targets & left.keys()}
        imported = {target for targets in left.values() for target in targets}
        kept = importing & imported
        if kept == left.keys():
            return kept
        left = {module: left[module] & kept for module in kept}


def single_importers(imports: Mapping[str, Set[str]]) -> dict[str, str]:
    """Modules that one other imports, and which.

    Left out are packages, and modules with a life of their own that some list calls for: a registry, a package, the
    commands, which import what they run when it runs.
    """
    packages = {module.rpartition(".")[0] for module in imports}
    by: dict[str, set[str]] = {}
    for module, targets in imports.items():
        for target in targets - packages:
            by.setdefault(target, set()).add(module)
    found = {module: importers.copy().pop() for module, importers in by.items() if len(importers) == 1}
    commands = {
        module for module in imports if module.startswith("adaptspec.commands.") or module == "adaptspec.__main__"
    }
    lists = commands | packages | {module for module in imports if module.endswith("registry")}
    return {module: importer for module, importer in sorted(found.items()) if importer not in lists}


def late_imports(file: Source) -> Iterator[str]:
    """Imports inside functions, but of optional dependencies; those of commands wait until a command runs."""
    if file.folder == "commands":
        return
    for function in ast.walk(file.tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for node in ast.walk(function):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            yield from (f"{file.name}:{node.lineno} {name}" for name in names if name.split(".")[0] not in OPTIONAL)


def swallowed_errors(file: Source) -> Iterator[str]:
    """`except:`, and handlers of any exception that neither raise, nor call anything, nor look at it."""
    for node in ast.walk(file.tree):
        if not isinstance(node, ast.ExceptHandler):
            continue
        bare = node.type is None
        broad = isinstance(node.type, ast.Name) and node.type.id in ("Exception", "BaseException")
        parts = [one for part in node.body for one in ast.walk(part)]
        acts = any(isinstance(one, ast.Raise | ast.Call) for one in parts)
        acts |= any(isinstance(one, ast.Name) and one.id == node.name for one in parts)
        if bare or (broad and not acts):
            yield f"{file.name}:{node.lineno}"


def mutable_globals(file: Source) -> Iterator[str]:
    """Names of a module that functions rebind, or whose containers they change; and counters."""
    held = {name for name, value in _assigned(file.tree) if _is_container(value)}
    for node in ast.walk(file.tree):
        if isinstance(node, ast.Global):
            yield f"{file.name}:{node.lineno} {', '.join(node.names)}"
        changed = None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGES:
            changed = node.func.value
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            changed = node.value
        if isinstance(changed, ast.Name) and changed.id in held:
            yield f"{file.name}:{node.lineno} {changed.id}"
    for name, value in _assigned(file.tree):
        if isinstance(value, ast.Call) and ast.unparse(value.func) in ("itertools.count", "count"):
            yield f"{file.name} {name}"


def _assigned(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    for node in tree.body:
        if isinstance(node, ast.Assign):
            yield from ((one.id, node.value) for one in node.targets if isinstance(one, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            yield node.target.id, node.value


def _is_container(value: ast.expr) -> bool:
    made = isinstance(value, ast.Call) and ast.unparse(value.func).rpartition(".")[2] in _MAKERS
    return made or isinstance(value, _CONTAINERS)


@dataclass(frozen=True)
class Measure:
    """One line of the table: what was found, its limit, and what breaks it."""

    what: str
    found: str
    limit: str
    good: bool
    breaches: tuple[str, ...] = ()


def measures() -> list[Measure]:
    """All that can be read off the sources."""
    files, graph = sources(), imports()
    lengths = [one for file in files for one in functions(file)]
    longest, long = max(files, key=lambda file: file.lines), [one for one in lengths if one[1] > LONG_FUNCTION]
    worst, single = max(lengths, key=lambda one: one[1]), single_importers(graph)
    modules = sum(file.path.name != "__init__.py" for file in files)
    share = len(single) / modules
    found = [_information("lines", f"{sum(file.lines for file in files):,} in {len(files)} files")]
    for folder, (lines, count) in folder_sizes(files).items():
        found.append(_information(f"{folder}/" if folder else "(root)", f"{lines:,} in {count} files"))
    found += [
        _information("longest file", f"{longest.lines} {longest.name}"),
        _information(f"functions over {LONG_FUNCTION} lines", f"{len(long) / len(lengths):.2%}"),
        _information("longest function", f"{worst[1]} {worst[0]}"),
        Measure("the engine's step", str(step_lines(files)), str(STEP), step_lines(files) <= STEP),
        Measure(
            "modules with a single importer",
            f"{share:.1%} ({len(single)})",
            f"{SINGLE_SHARE:.0%}",
            share <= SINGLE_SHARE,
            tuple(f"{module} <- {importer}" for module, importer in single.items()),
        ),
        _none("folders above 25 files", (f"{name}/ {count}" for name, count in full_folders(files).items())),
        _information("modules without a test of their name", f"{len(untested(files)) / modules:.1%}"),
        _none("repeated file names", (" ".join(where) for where in repeated_names(files).values())),
        _none("modules in import cycles", sorted(modules_in_cycles(graph))),
        _none("imports inside functions", (one for file in files for one in late_imports(file))),
        _none("bare or silent excepts", (one for file in files for one in swallowed_errors(file))),
        _none("mutable module globals", (one for file in files for one in mutable_globals(file))),
    ]
    return found


def way_measures(hops: list[str], records: Set[str]) -> list[Measure]:
    """Of a request that was served: see `tests.request_way`."""
    return [
        Measure("modules from HTTP handler to verification", str(len(hops)), str(HOPS), len(hops) <= HOPS, tuple(hops)),
        Measure(
            "record types made per round",
            str(len(records)),
            str(RECORDS),
            len(records) <= RECORDS,
            tuple(sorted(records)),
        ),
    ]


def _information(what: str, found: str) -> Measure:
    return Measure(what, found, "", good=True)


def _none(what: str, found: Iterator[str] | list[str]) -> Measure:
    breaches = tuple(found)
    return Measure(what, str(len(breaches)), "0", not breaches, breaches)


def table(found: list[Measure]) -> str:
    """The measures, with what breaks a limit below it."""
    lines = [f"{'':2}{'measure':44}{'limit':>14}  found"]
    for one in found:
        lines.append(f"{'  ' if one.good else '! '}{one.what:44}{one.limit:>14}  {one.found}")
        lines += [f"      {breach}" for breach in one.breaches if not one.good]
    return "\n".join(lines)


def main() -> int:
    """Print the table; the exit status is 1 where a limit is passed."""
    from tests.conftest import write_tiny_model
    from tests.request_way import request_way

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_tiny_model(folder / "target", "llama", 0, {})
        write_tiny_model(folder / "draft", "llama", 1, {"num_hidden_layers": 1})
        hops, records = asyncio.run(request_way(folder / "target", folder / "draft", folder))
    found = measures() + way_measures(hops, records)
    sys.stdout.write(table(found) + "\n")
    return 0 if all(one.good for one in found) else 1


if __name__ == "__main__":
    raise SystemExit(main())

"""The shape of the code: no import cycles, those inside functions and for types counted; docstrings that read."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Set
from pathlib import Path

import grimp
import pytest

import adaptspec

ROOT = Path(adaptspec.__file__).parent


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


def test_no_module_imports_itself_in_a_circle() -> None:
    """A cycle makes modules impossible to read, test or move one by one."""
    graph = grimp.build_graph("adaptspec", exclude_type_checking_imports=False, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert modules_in_cycles(imports) == set()


@pytest.mark.parametrize(
    ("imports", "expected"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": set()}, set()),
        ({"a": {"b"}, "b": {"a"}}, {"a", "b"}),
        ({"a": {"a"}}, {"a"}),
        ({"top": {"a"}, "a": {"b"}, "b": {"c"}, "c": {"a", "leaf"}, "leaf": set()}, {"a", "b", "c"}),
    ],
)
def test_the_check_finds_cycles(imports: dict[str, set[str]], expected: set[str]) -> None:
    """The check itself can fail."""
    assert modules_in_cycles(imports) == expected


def cut_docstrings(text: str) -> Iterator[str]:
    """Docstrings in which an empty line comes amid a sentence."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first, _, more = (ast.get_docstring(node) or "").partition("\n\n")
            if more and not first.endswith((".", ":", "?", "!")):
                yield first


def test_no_docstring_is_cut() -> None:
    """A summary that needs two lines has two lines."""
    cut = {str(path): list(cut_docstrings(path.read_text(encoding="utf-8"))) for path in ROOT.rglob("*.py")}
    assert {path: found for path, found in cut.items() if found} == {}
    assert list(cut_docstrings('"""This goes\n\non here."""'))
